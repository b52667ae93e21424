"""`samestep.timed` starts when all ranks have arrived, and returns the seconds of the slowest rank."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

import samestep
from samestep.base.errors import UsageError
from samestep.ranks.world import timed_region as module
from samestep.ranks.world.thread_world import run_ranks
from samestep.ranks.world.timed_region import timed


@pytest.fixture
def given_times(monkeypatch):
    """The readings of the clock on this thread, in order."""
    own = threading.local()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(own.times)))
    return own


def test_every_rank_gets_the_seconds_of_the_slowest(given_times):
    def fn(world):
        given_times.times = iter(
            [10.0 * world.place.rank, 10.0 * world.place.rank + [1.5, 4.0, 2.0][world.place.rank]]
        )
        with timed() as region:
            pass
        return region.seconds

    assert run_ranks(fn, 3) == [4.0, 4.0, 4.0]


def test_a_region_begins_and_ends_when_all_ranks_have_arrived():
    begun, ended = [], []

    def fn(world):
        rank = world.place.rank
        time.sleep(0.05 * rank)  # without a barrier rank 0 would be through by then
        begun.append(rank)
        with timed(world=world):
            found = len(begun)
            time.sleep(0.05 * rank)
            ended.append(rank)
        return found, len(ended)

    assert run_ranks(fn, 2) == [(2, 2), (2, 2)]


def test_a_label_is_printed_once(given_times, capsys):
    def fn(world):
        given_times.times = iter([0.0, 0.25])
        with timed("ten steps"):
            pass
        given_times.times = iter([0.0, 0.5])
        with timed():
            pass

    run_ranks(fn, 2)

    assert capsys.readouterr().out == "ten steps: 250 ms\n"


def test_a_process_without_other_ranks_times_itself(given_times):
    given_times.times = iter([1.0, 3.0])
    with samestep.timed() as region:
        pass

    assert region.seconds == 2.0


def test_seconds_are_refused_before_the_end_of_a_region():
    with timed() as region, pytest.raises(UsageError, match="after the `with` block"):
        _ = region.seconds


def test_a_block_that_raises_does_not_wait_for_other_ranks():
    def fn(world):
        if world.place.rank:
            with pytest.raises(ZeroDivisionError), timed() as region:
                raise ZeroDivisionError
            with pytest.raises(UsageError, match="error ended its block"):
                _ = region.seconds
        else:
            world.barrier()  # where the region begins
        return True

    assert run_ranks(fn, 2) == [True, True]


@pytest.mark.parametrize("is_open", [True, False])
def test_an_initialized_accelerator_is_synchronized_at_both_ends_and_never_initialized(
    monkeypatch, given_times, is_open
):
    done = []
    given_times.times = iter(range(2))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_open)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: done.append("waited"))
    with timed():
        done.append("block")

    assert done == (["waited", "block", "waited"] if is_open else ["block"])
