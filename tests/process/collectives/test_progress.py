"""The progress of collectives in shared memory is counted per group."""

import warnings

import pytest
import torch
import torch.distributed as dist

from samestep.base.errors import OutOfStep
from samestep.ranks.collectives.shared_memory import on_one_host
from samestep.ranks.hang.flight_recorder import PROGRESS, CollectiveCount, Recorder, ranks_of
from samestep.ranks.hang.flight_recorder import SHARED_MEMORY as GROUP
from samestep.ranks.hang.rank_status import RankStatus, SharedMemoryStore, Wait, parse_statuses
from support.subgroup import Subgroup

NAMES = f"{GROUP} of ranks 0, 1", f"{GROUP} of ranks 1, 2"


def in_several_groups(world):
    """Call collectives in two groups, of which rank 1 is in both; return the counts of this rank."""
    PROGRESS.clear()  # of what these processes did before
    rank = world.place.rank
    if rank < 2:
        one = on_one_host(Subgroup(world, [1, 0]))
        again = on_one_host(Subgroup(world, [0, 1]))
        one.barrier()
        again.barrier()
    if rank > 0:
        on_one_host(Subgroup(world, [1, 2])).all_reduce(torch.ones(3))
    on_one_host(world).barrier()
    return {name: count for name, count in Recorder().counts().items() if GROUP in name}


def test_calls_are_counted_per_group(processes):
    whole = {GROUP: CollectiveCount(1, 1)}

    assert processes.run(in_several_groups, 3) == [
        {NAMES[0]: CollectiveCount(2, 2), **whole},
        {NAMES[0]: CollectiveCount(2, 2), NAMES[1]: CollectiveCount(1, 1), **whole},
        {NAMES[1]: CollectiveCount(1, 1), **whole},
    ]


def members(world):
    PROGRESS.clear()
    if world.place.rank:
        on_one_host(Subgroup(world, [2, 1]))
    on_one_host(world)
    return [ranks_of(name) for name in (NAMES[1], GROUP, "another")]


def test_a_report_contains_the_ranks_of_a_group(processes):
    assert processes.run(members, 3) == [[(), (0, 1, 2), ()], *[[(1, 2), (0, 1, 2), ()]] * 2]


def refused(world):
    PROGRESS.clear()
    near = on_one_host(world)
    with pytest.raises(OutOfStep):
        near.all_reduce(torch.ones(3 + world.place.rank))
    told = Recorder()
    return told.counts()[GROUP], told.under_way(GROUP), told.name_of(GROUP, 1)


def test_a_refused_call_counts_as_ended(processes):
    assert processes.run(refused, 2) == [(CollectiveCount(1, 1), None, "all_reduce")] * 2


def with_many_tensors(world):
    """Call collectives of many tensors, and post them as those of a rank that waits; return what is read."""
    PROGRESS.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for _ in range(9):
            dist.all_reduce_coalesced([torch.ones(1000 + number) for number in range(60)])
    recorder, store = Recorder(), SharedMemoryStore(1)
    recent = next(calls for group in recorder.counts() if (calls := recorder.recent(group)))
    wait = Wait(op="all_reduce", seq=9, group="0", ranks=(), age_s=1.0, recent=recent)
    store.post(RankStatus(generation=0, beat=1, wait=wait).to_bytes())
    return len(recent), [status.wait == wait for status in parse_statuses(store.read()).values()]


def test_the_status_of_a_rank_that_waits_with_many_tensors_can_be_read(processes):
    """It was longer than the memory for it, and a rank that waited was reported as not responding."""
    assert processes.run(with_many_tensors, 2) == [(8, [True])] * 2
