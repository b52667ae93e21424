import pytest

from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import accelerator_count, workers_per_node


@pytest.mark.parametrize(
    ("text", "accelerators", "workers"),
    [("3", 8, 3), ("cpu", 8, 16), ("gpu", 8, 8), ("auto", 8, 8), ("auto", 0, 16)],
)
def test_workers_per_node_in_torchruns_words(text, accelerators, workers):
    assert workers_per_node(text, cpus=16, accelerators=accelerators) == workers


@pytest.mark.parametrize("text", ["gpu", "many", ""])
def test_what_cannot_be_counted_is_refused(text):
    with pytest.raises(UsageError, match="--nproc-per-node"):
        workers_per_node(text, cpus=16, accelerators=0)


def test_a_node_without_device_files_has_no_accelerator(tmp_path):
    (tmp_path / "null").touch()
    assert accelerator_count(tmp_path) == 0
