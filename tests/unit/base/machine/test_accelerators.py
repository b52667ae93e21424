import pytest

from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import (
    accelerator_count,
    driver_is_open,
    only_first_gpus,
    workers_per_node,
)


@pytest.mark.parametrize(
    ("text", "accelerators", "workers"),
    [("3", 8, 3), ("cpu", 8, 16), ("gpu", 8, 8), ("auto", 8, 8), ("auto", 0, 16)],
)
def test_workers_per_node_accepts_the_values_of_torchrun(text, accelerators, workers):
    assert workers_per_node(text, cpus=16, accelerators=accelerators) == workers


@pytest.mark.parametrize("text", ["gpu", "many", ""])
def test_an_invalid_number_of_workers_per_node_is_refused(text):
    with pytest.raises(UsageError, match="--nproc-per-node"):
        workers_per_node(text, cpus=16, accelerators=0)


def test_a_node_without_device_files_has_no_accelerator(tmp_path):
    (tmp_path / "null").touch()
    assert accelerator_count(tmp_path) == 0


def test_the_first_gpus_are_taken_from_the_variable_that_the_driver_reads():
    assert only_first_gpus({"CUDA_VISIBLE_DEVICES": ""}, 2) == {"CUDA_VISIBLE_DEVICES": ""}
    environment = {"HIP_VISIBLE_DEVICES": "4,5,6"}
    assert only_first_gpus(environment, 2) == {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "4,5"}


def test_an_open_driver_is_found_by_its_device_file(tmp_path):
    (tmp_path / "3").symlink_to("/dev/nvidiactl")  # which the library that lists GPUs opens
    (tmp_path / "4").touch()
    assert not driver_is_open(tmp_path)
    (tmp_path / "5").symlink_to("/dev/nvidia-uvm")
    assert driver_is_open(tmp_path)
    assert not driver_is_open(tmp_path / "none")
