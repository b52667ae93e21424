"""What a thread waits in, told from its frames."""

import gc
import weakref
from threading import Thread
from types import SimpleNamespace

import pytest

from samestep.watch import look, where
from samestep.watch.look import Lookout
from samestep.watch.where import blocked_in, main_frames
from samestep.world.process_group import ProcessGroupWorld


def test_a_message_of_a_world_is_told_with_its_rank():
    seen = []
    message = SimpleNamespace(wait=lambda: seen.append(blocked_in(main_frames())))
    world = SimpleNamespace(_blocked=None)

    ProcessGroupWorld.await_message(world, message, op="exchange", peer=3)

    assert [(one.op, one.ranks) for one in seen] == [("exchange", (3,))]


class InHand:
    """What a caller has in hand: its end can be seen."""


@pytest.fixture
def lookout(monkeypatch):
    monkeypatch.setattr(look, "has_group", lambda: True)
    return Lookout(0)


def waited(times, seconds, lookout):
    """Look some times at one message, from another thread; return what is seen at last, and what was in hand.

    Args:
        times: how many.
        seconds: between two looks, as they are told.
        lookout: looks.
    """
    in_hand = InHand()
    seen = []

    def wait():
        for _ in range(times):
            beside = Thread(target=lambda: seen.append(lookout.look(seconds)))
            beside.start()
            beside.join()

    world = SimpleNamespace(_blocked=None)
    ProcessGroupWorld.await_message(world, SimpleNamespace(wait=wait), op="recv", peer=1)
    return seen[-1].wait, weakref.ref(in_hand)


def test_a_message_is_as_old_as_the_looks_at_it(lookout):
    assert waited(2, 0.6, lookout)[0] is None
    wait, _ = waited(3, 0.6, lookout)
    assert (wait.op, wait.ranks, wait.age_s) == ("recv", (1,), 1.2)


def test_messages_one_after_the_other_are_no_long_one_though_their_frames_have_one_address(
    lookout, monkeypatch
):
    monkeypatch.setattr(where, "id", lambda _: 1, raising=False)
    assert [waited(1, 0.6, lookout)[0] for _ in range(5)] == [None] * 5


def test_a_look_keeps_nothing_of_the_callers(lookout):
    gc.disable()
    try:
        _, in_hand = waited(3, 0.6, lookout)
        assert in_hand() is None
    finally:
        gc.enable()
