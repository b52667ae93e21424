"""A world of one rank is joined without a process group, and the state before is restored."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed import DistNetworkError

from samestep.base import env
from samestep.base.errors import DetectionError, PeerLost, UsageError, WorldError
from samestep.base.place import Place
from samestep.launch.local.failure import Failure
from samestep.ranks.world.join import _not_connected, join, join_team
from samestep.ranks.world.process_group import current
from samestep.ranks.world.protocol import SoloWorld
from support.recordings import recording


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Clear the environment, and restore the number of threads of this process."""
    monkeypatch.setattr(env, "snapshot", dict)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_process_without_a_launcher_gets_a_world_of_one():
    with join(device="cpu") as world:
        assert isinstance(world, SoloWorld)
        assert world.place == Place()
        assert current() is world
        assert not dist.is_initialized()


def test_join_settles_the_math_kernels(monkeypatch):
    done = []
    monkeypatch.setattr(
        sys.modules["samestep.ranks.world.join"], "settle_math_kernels", lambda: done.append(True)
    )
    with join(device="cpu"):
        assert done


@pytest.mark.parametrize(
    ("joined", "waits"),
    [(join(device="cpu", timeout_s=3), False), (join_team(device="cpu", timeout_s=3), True)],
)
def test_a_helper_may_start_later_than_it_may_answer(monkeypatch, joined, waits):
    """Only this finds a serial script that ends as one of its ranks imports torch for a minute."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.setattr(env, "snapshot", lambda: variables)
    waited = []

    def opened(*_, timeout_s, **__):
        waited.append(timeout_s)
        raise PeerLost

    monkeypatch.setattr(sys.modules["samestep.ranks.world.join"], "open_store", opened)
    with pytest.raises(PeerLost), joined:
        pass
    assert (waited[0] > 60) == waits


def test_the_world_is_no_longer_current_after_an_error():
    with pytest.raises(KeyError), join(device="cpu") as world:
        raise KeyError
    assert current() is not world


def test_join_sets_the_number_of_threads():
    with join(device="cpu", threads=1):
        assert torch.get_num_threads() == 1


def test_a_batch_script_outside_of_a_step_gets_a_note_about_srun(monkeypatch, capfd):
    monkeypatch.setattr(env, "snapshot", lambda: recording("slurm_sbatch_script").environment)
    with join(device="cpu"):
        pass
    assert "srun" in capfd.readouterr().err


def test_a_missing_device_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="device=cuda"), join(device="cuda"):
        pass


def test_a_place_of_several_ranks_needs_a_rendezvous_address():
    place = Place(rank=0, size=2, local_size=2)
    with pytest.raises(DetectionError, match="MASTER_PORT"), join(device="cpu", place=place):
        pass


def test_an_existing_process_group_is_used_and_not_destroyed():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with join() as world:
            assert world.place.size == 1
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "kind", "is_cause"),
    [(DistNetworkError("the store is lost"), PeerLost, False), (RuntimeError("no nope0"), WorldError, True)],
)
def test_a_lost_store_follows_from_another_ranks_failure(error, kind, is_cause):
    place = Place(rank=1, size=2, local_rank=1, local_size=2)
    found = _not_connected(place, error)
    failure = Failure(
        rank=1, local_rank=1, pid=7, exit_code=1, error=type(found).__name__, message=str(found)
    )

    assert type(found) is kind
    assert (failure.weight == 0) == is_cause
