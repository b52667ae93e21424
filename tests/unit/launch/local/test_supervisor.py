import os
import signal
from types import SimpleNamespace

import pytest

from samestep.launch.local import supervisor
from samestep.launch.local.child import Start
from samestep.launch.local.local_backend import places
from samestep.launch.local.supervisor import Signals, conclude, in_foreground
from samestep.launch.local.workers import Workers


@pytest.mark.parametrize(
    ("number", "foreground", "shared"),
    [
        (signal.SIGINT, True, True),  # the terminal sends it to the whole group
        (signal.SIGINT, False, False),
        (signal.SIGTERM, True, False),
        (signal.SIGHUP, True, False),
    ],
)
def test_only_ctrl_c_in_the_foreground_is_sent_to_the_workers_by_the_terminal(
    monkeypatch, number, foreground, shared
):
    monkeypatch.setattr(supervisor, "in_foreground", lambda: foreground)
    signals = Signals(wakeup=-1)
    signals.take(number, None)

    assert signals.reach_workers is shared


def test_without_a_terminal_nothing_is_in_the_foreground(tmp_path):
    assert in_foreground(str(tmp_path / "none")) is False
    assert in_foreground(os.devnull) is False


def test_no_worker_starts_after_a_signal(monkeypatch):
    signals, started = Signals(wakeup=-1), []

    def fork(_workers, start, _entry):
        started.append(start.place.rank)
        if start.place.rank == 1:
            signals.take(signal.SIGTERM, None)

    monkeypatch.setattr(Workers, "_fork", fork)
    with Workers() as workers:
        here = [Start(place=place, variables={}, streams=[]) for place in places(4)]
        workers.start(here, lambda *_: None, received=signals.received)

    assert started == [0, 1]


class Ended:
    """Workers that have ended with these exit codes."""

    def __init__(self, codes):
        self.all = [SimpleNamespace(exit_code=code) for code in codes]
        self.failures = [worker for worker in self.all if worker.exit_code]

    def cause(self):
        return self.failures[0]

    def await_cause(self, **_):
        pass

    await_end = stop = lambda self, *_, **__: None


@pytest.mark.parametrize(("codes", "preempted"), [((75, 75), True), ((75, 1), False), ((1, 75), False)])
def test_a_run_is_preempted_only_if_all_workers_can_be_resumed(codes, preempted):
    job = SimpleNamespace(patience_s=0.0, grace_s=0.0)
    assert conclude(Ended(codes), Signals(wakeup=-1), job).preempted is preempted
