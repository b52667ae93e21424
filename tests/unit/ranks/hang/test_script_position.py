"""The call in which a thread waits is found in its frames, or in the record of messages."""

import gc
import sys
import weakref
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
import torch.distributed as dist

from samestep.base.worker_records import callers
from samestep.ranks.hang import flight_recorder, script_position, watchdog
from samestep.ranks.hang.current_call import CallRecord, call_of_main_thread, recorded_messages
from samestep.ranks.hang.flight_recorder import SHARED_MEMORY, progress_of
from samestep.ranks.hang.script_position import blocked_in, main_frames, position_of
from samestep.ranks.hang.watchdog import StatusSampler


def barrier(wait):
    """Call `wait` within a function that has the name and the file of torch's ``barrier``."""
    file = Path(torch.__file__).parent / "distributed" / "distributed_c10d.py"
    names = {}
    exec(compile("def barrier(wait):\n    wait()", file, "exec"), names)
    names["barrier"](wait)


def test_a_collective_is_found_by_its_name():
    seen = []
    barrier(lambda: seen.append(blocked_in(main_frames())))

    assert [one.op for one in seen] == ["barrier"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: dist.send(None, 3), ("send", 3)),
        (lambda: dist.recv(None, src=2), ("recv", 2)),
        (lambda: dist.recv(None), ("recv", None)),
        (lambda: dist.send(None, group_dst=1), ("send", 1)),
    ],
)
def test_a_message_of_the_script_is_recorded_with_its_rank(monkeypatch, call, expected):
    seen = []

    def message(*args, **kwargs):
        seen.append(call_of_main_thread())

    for name in ("send", "recv"):
        monkeypatch.setattr(dist, name, message)
    with recorded_messages():
        call()

    assert [(one.op, one.peer) for one in seen] == [expected]
    assert call_of_main_thread() is None


class Local:
    """An object in a local variable of a caller."""


@pytest.fixture
def sampler(monkeypatch):
    monkeypatch.setattr(watchdog, "has_group", lambda: True)
    return StatusSampler(0)


def sampled(times, seconds, sampler):
    """Return the last wait that another thread samples."""
    seen = []
    for _ in range(times):
        beside = Thread(target=lambda: seen.append(sampler.sample(seconds)))
        beside.start()
        beside.join()
    return seen[-1].wait


def waited(times, seconds, sampler):
    """Sample one collective from another thread; return the last wait, and a reference to a caller's object.

    Args:
        times: number of samples.
        seconds: seconds between two samples, as the sampler is given them.
        sampler: the sampler.
    """
    local = Local()
    seen = []
    barrier(lambda: seen.append(sampled(times, seconds, sampler)))
    return seen[-1], weakref.ref(local)


def test_the_age_of_a_wait_is_the_time_between_its_samples(sampler):
    assert waited(2, 0.6, sampler)[0] is None
    wait, _ = waited(3, 0.6, sampler)
    assert (wait.op, wait.ranks, wait.age_s) == ("barrier", (), 1.2)


@pytest.mark.parametrize(("positions", "waits"), [((1, 1, 1, 1), True), ((1, 2, 1, 2), False)])
def test_a_rank_that_moves_does_not_wait_for_the_collective_that_it_has_begun(
    sampler, monkeypatch, positions, waits
):
    """A rank that computed for long while another one had to call the collective was reported to wait."""
    at = iter(positions)
    monkeypatch.setattr(watchdog, "position_of", lambda _: next(at))
    monkeypatch.setattr(flight_recorder, "PROGRESS", {})
    progress_of((0, 1), 2, SHARED_MEMORY).enter("all_reduce")

    assert (sampled(4, 0.6, sampler) is not None) is waits


def test_the_position_of_a_thread_changes_with_its_place_and_that_of_a_caller():
    def position():
        return position_of(callers(sys._getframe()))

    again = [position() for _ in range(2)]
    assert again[0] == again[1] != position()


def test_a_message_counts_as_a_wait_from_its_second_sample(sampler):
    record = CallRecord()
    record.begin("recv", 1, True)
    assert sampled(1, 0.6, sampler) is None
    first = sampled(1, 0.6, sampler)
    record.begin("recv", 1, True)
    again = sampled(1, 0.6, sampler)
    record.end()

    assert (first.op, first.peer, first.age_s, first.alone) == ("recv", 1, 0.6, True)
    assert again is None


def test_a_failed_call_is_in_the_status_until_the_rank_waits_again(sampler):
    record = CallRecord()
    sampler.circle = "rank 0 sends to rank 1, ..."
    sampler.give_up(record.begin("recv", 1, False))
    record.end()
    assert sampler.sample(0.1).gave_up
    assert sampler.last.wait.peer == 1
    record.begin("send", 0, False)
    assert not sampler.sample(0.1).gave_up
    assert not sampler.last.circle
    record.end()


def test_a_wait_of_another_thread_is_not_reported(sampler):
    record, begun, over = CallRecord(), Event(), Event()

    def wait():
        record.begin("recv", 1, True)
        begun.set()
        over.wait()
        record.end()

    beside = Thread(target=wait)
    beside.start()
    begun.wait()
    try:
        assert [sampled(1, 0.6, sampler) for _ in range(3)] == [None] * 3
    finally:
        over.set()
        beside.join()


def test_calls_with_frames_at_the_same_address_are_different_waits(sampler, monkeypatch):
    monkeypatch.setattr(script_position, "id", lambda _: 1, raising=False)
    assert [waited(1, 0.6, sampler)[0] for _ in range(5)] == [None] * 5


def test_a_sample_keeps_no_reference_to_callers(sampler):
    gc.disable()
    try:
        _, local = waited(3, 0.6, sampler)
        assert local() is None
    finally:
        gc.enable()
