"""All ranks call a script's signal handler at the same point, for a signal that any rank receives."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from samestep.autopilot.script.agreed_signals import SignalHandlers
from samestep.ranks.world.thread_world import run_ranks

USR1, TERM = signal.SIGUSR1, signal.SIGTERM


def handlers_of(world):
    """Return handlers that stand for those of a process, which ranks that are threads share."""
    set_here = {}
    return SignalHandlers(
        world, set_here.__setitem__, lambda number: set_here.get(number, signal.SIG_DFL)
    ), set_here


def test_all_ranks_handle_a_signal_once_at_their_next_call():
    def copies(world):
        seen, steps = [], []
        handlers, _ = handlers_of(world)
        handlers.set(USR1, lambda number, frame: seen.append((number, frame is not None)))
        for step in range(5):
            if step == 1 + world.place.rank:  # the same signal arrives a step later at rank 1
                handlers.record(USR1, None)
            if step == 3 and world.place.is_main:  # and another one at rank 0 alone
                handlers.record(USR1, None)
            handlers.agree()
            steps.append(len(seen))
        return seen, steps

    assert run_ranks(copies, 2) == [([(USR1, True)] * 2, [0, 1, 1, 2, 2])] * 2


def test_an_exception_of_a_handler_is_raised_on_all_ranks():
    def copies(world):
        handlers, _ = handlers_of(world)
        handlers.set(TERM, lambda number, frame: exec("raise KeyError(number)"))
        if not world.place.is_main:
            handlers.record(TERM, None)
        with pytest.raises(KeyError):
            handlers.agree()
        return True

    assert run_ranks(copies, 3) == [True] * 3


def test_a_signal_from_another_thread_is_sent_to_the_process():
    def copies(world):
        seen, sent = [], []
        handlers, _ = handlers_of(world)
        handlers._kill = lambda process, number: sent.append(number)
        handlers.set(USR1, lambda *_: seen.append(USR1))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(handlers.send, os.getpid(), USR1).result()
        return seen, sent

    assert run_ranks(copies, 2) == [([], [USR1])] * 2


def test_a_process_that_the_script_forks_handles_its_signals_itself(monkeypatch):
    handlers, _ = handlers_of(None)
    seen = []
    handlers.set(TERM, lambda number, frame: seen.append(number))
    monkeypatch.setattr(os, "getpid", lambda: 0)
    handlers.record(TERM, None)
    assert seen == [TERM]


def test_handlers_are_set_read_removed_and_restored():
    def copies(world):
        handlers, set_here = handlers_of(world)
        one, other = lambda *_: None, lambda *_: None
        before = [handlers.set(USR1, one), handlers.set(USR1, other), handlers.get(USR1)]
        assert before == [signal.SIG_DFL, one, other]
        assert set_here[USR1] == handlers.record
        handlers.set(signal.SIGALRM, one)  # none that asks to stop
        handlers.set(signal.SIGINT, signal.default_int_handler)
        assert set_here[signal.SIGALRM] is one
        assert set_here[signal.SIGINT] is signal.default_int_handler
        handlers.set(TERM, one)
        handlers.set(TERM, signal.SIG_IGN)
        handlers.restore()
        return set_here[USR1] is other and set_here[TERM] is signal.SIG_IGN

    assert run_ranks(copies, 1) == [True]


def test_a_signal_that_a_rank_sends_to_itself_is_handled_at_once():
    def copies(world):
        seen = []
        handlers, _ = handlers_of(world)
        handlers.set(USR1, lambda number, frame: seen.append((number, frame is not None)))
        handlers.send(os.getpid(), USR1)
        first = len(seen)
        handlers.raise_signal(USR1)
        handlers.agree()
        return first, seen

    assert run_ranks(copies, 2) == [(1, [(USR1, True)] * 2)] * 2
