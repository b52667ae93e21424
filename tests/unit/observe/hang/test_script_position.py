"""The call in which a thread waits is found from its frames."""

import gc
import weakref
from threading import Thread
from types import SimpleNamespace

import pytest

from samestep.observe.hang import script_position, status_sampling
from samestep.observe.hang.script_position import blocked_in, main_frames
from samestep.observe.hang.status_sampling import StatusSampler
from samestep.ranks.world.process_group import ProcessGroupWorld


def test_a_message_of_a_world_is_found_with_its_rank():
    seen = []
    message = SimpleNamespace(wait=lambda: seen.append(blocked_in(main_frames())))
    world = SimpleNamespace(_blocked=None)

    ProcessGroupWorld.await_message(world, message, op="exchange", peer=3)

    assert [(one.op, one.ranks) for one in seen] == [("exchange", (3,))]


class Local:
    """An object in a local variable of a caller."""


@pytest.fixture
def sampler(monkeypatch):
    monkeypatch.setattr(status_sampling, "has_group", lambda: True)
    return StatusSampler(0)


def waited(times, seconds, sampler):
    """Sample one message from another thread; return the last wait, and a reference to a caller's object.

    Args:
        times: number of samples.
        seconds: seconds between two samples, as the sampler is given them.
        sampler: the sampler.
    """
    local = Local()
    seen = []

    def wait():
        for _ in range(times):
            beside = Thread(target=lambda: seen.append(sampler.sample(seconds)))
            beside.start()
            beside.join()

    world = SimpleNamespace(_blocked=None)
    ProcessGroupWorld.await_message(world, SimpleNamespace(wait=wait), op="recv", peer=1)
    return seen[-1].wait, weakref.ref(local)


def test_the_age_of_a_message_is_the_time_between_its_samples(sampler):
    assert waited(2, 0.6, sampler)[0] is None
    wait, _ = waited(3, 0.6, sampler)
    assert (wait.op, wait.ranks, wait.age_s) == ("recv", (1,), 1.2)


def test_messages_whose_frames_have_the_same_address_are_different_waits(sampler, monkeypatch):
    monkeypatch.setattr(script_position, "id", lambda _: 1, raising=False)
    assert [waited(1, 0.6, sampler)[0] for _ in range(5)] == [None] * 5


def test_a_sample_keeps_no_reference_to_callers(sampler):
    gc.disable()
    try:
        _, local = waited(3, 0.6, sampler)
        assert local() is None
    finally:
        gc.enable()
