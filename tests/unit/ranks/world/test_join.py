"""A world of one is joined without any process group, and left as it was found."""

import sys

import pytest
import torch
import torch.distributed as dist

from samestep.base import env
from samestep.base.errors import DetectionError, UsageError
from samestep.base.place import Place
from samestep.ranks.world.current import current
from samestep.ranks.world.join import join
from samestep.ranks.world.solo import SoloWorld
from support.recordings import recording


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """No launcher's variables but a test's own, and this process's threads put back."""
    monkeypatch.setattr(env, "snapshot", dict)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_process_that_nobody_started_gets_a_world_of_one():
    with join(device="cpu") as world:
        assert isinstance(world, SoloWorld)
        assert world.place == Place()
        assert current() is world
        assert not dist.is_initialized()


def test_the_kernels_of_functions_are_settled(monkeypatch):
    done = []
    monkeypatch.setattr(
        sys.modules["samestep.ranks.world.join"], "settle_math_kernels", lambda: done.append(True)
    )
    with join(device="cpu"):
        assert done


def test_the_world_is_left_after_an_error_too():
    with pytest.raises(KeyError), join(device="cpu") as world:
        raise KeyError
    assert current() is not world


def test_threads_are_bound():
    with join(device="cpu", threads=1):
        assert torch.get_num_threads() == 1


def test_a_batch_script_that_trains_alone_is_told_so(monkeypatch, capfd):
    monkeypatch.setattr(env, "snapshot", lambda: recording("slurm_sbatch_script").environment)
    with join(device="cpu"):
        pass
    assert "srun" in capfd.readouterr().err


def test_a_missing_device_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="device=cuda"), join(device="cuda"):
        pass


def test_a_place_of_several_ranks_needs_to_know_where_to_meet():
    place = Place(rank=0, size=2, local_size=2)
    with pytest.raises(DetectionError, match="MASTER_PORT"), join(device="cpu", place=place):
        pass


def test_a_process_group_that_is_up_is_used_and_left_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with join() as world:
            assert world.place.size == 1
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
