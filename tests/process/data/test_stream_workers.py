"""`samestep.shard` of a stream that loader processes read."""

import gc
import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import samestep
from samestep.base.errors import DataError, UsageError
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from support.iterable_data_sets import Broken, Counting, Shuffled, Sliced, Split, Unseeded

SERVED = {"multiprocessing_context": "forkserver", "num_workers": 2}


def steps_of(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("data", [Counting(11), Split(11), Shuffled(11)])
def test_persistent_loader_processes_give_equal_batches_and_states(data):
    plain = samestep.shard(data, batch_size=3, world=SoloWorld())
    served = samestep.shard(data, batch_size=3, world=SoloWorld(), **SERVED, persistent_workers=True)
    for _ in range(2):
        assert steps_of(served) == steps_of(plain)
        assert served.state_dict() == plain.state_dict()
    for loader in (plain, served):
        for _ in loader:
            saved = loader.state_dict()
            break
        loader.load_state_dict(saved)
    rest = steps_of(plain)
    assert len(rest) == 3
    assert steps_of(served) == rest


def test_a_rank_reads_its_share_through_two_processes():
    worlds = run_ranks(lambda world: world, 3)
    last = samestep.shard(Counting(7), batch_size=3, drop_last=False, world=_EqualRanks(worlds[2]), **SERVED)
    assert steps_of(last) == [[2], [5], []]


def test_processes_that_read_different_streams_are_refused_before_the_first_step():
    with pytest.raises(UsageError, match="the loader processes of worker 0 read different first samples"):
        next(iter(samestep.shard(Unseeded(20), batch_size=4, world=SoloWorld(), **SERVED)))
    alone = samestep.shard(Unseeded(20), batch_size=4, world=SoloWorld())
    assert len(steps_of(alone)) == 5


@pytest.mark.parametrize("readable", [0, 9])
def test_a_read_error_is_raised_without_a_traceback(readable):
    data = Broken(readable, DataError("shard-7.tar is damaged"))
    loader = samestep.shard(data, batch_size=3, world=SoloWorld(), **SERVED, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(DataError, match=r"^shard-7\.tar is damaged$"):
            steps_of(loader)


def test_loader_processes_end_after_an_error():
    """A reference cycle through the traceback would keep them until the next garbage collection."""
    before = set(multiprocessing.active_children())
    data = Broken(9, DataError("no"))
    loader = samestep.shard(data, batch_size=3, world=SoloWorld(), **SERVED, persistent_workers=True)
    gc.disable()
    try:
        with pytest.raises(DataError, match="no"):
            steps_of(loader)
        del loader
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


def start_at_2(process):
    """Set the start as in torch's documentation of IterableDataset, but equally in all processes."""
    info = get_worker_info()
    assert (info.id, info.num_workers) == (process, 2)
    info.dataset.start = 2


def test_a_worker_init_fn_gets_the_users_data_set():
    serial = DataLoader(
        Sliced(11),
        batch_size=4,
        worker_init_fn=start_at_2,
        num_workers=2,
        multiprocessing_context="forkserver",
    )
    assert steps_of(samestep.shard(serial, world=SoloWorld())) == [[2, 3, 4, 5], [6, 7, 8, 9], [10]]


def start_at_worker_id(process):
    get_worker_info().dataset.start = process


def test_a_worker_init_fn_that_splits_the_stream_is_refused():
    loader = samestep.shard(
        Sliced(9), batch_size=4, world=SoloWorld(), worker_init_fn=start_at_worker_id, **SERVED
    )
    with pytest.raises(UsageError, match="worker_init_fn"):
        next(iter(loader))


class _EqualRanks:
    """A world whose ranks all send the same object."""

    def __init__(self, world):
        self.place, self.device = world.place, torch.device("cpu")

    def all_gather_objects(self, value):
        return [value] * self.place.size
