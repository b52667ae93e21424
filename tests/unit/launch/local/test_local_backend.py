import os
import signal
from types import SimpleNamespace

import pytest

from samestep.base.place import Place
from samestep.launch.local import local_backend
from samestep.launch.local.child import Start
from samestep.launch.local.failure import Failure
from samestep.launch.local.local_backend import (
    Restarts,
    Round,
    Signals,
    conclude,
    in_foreground,
    place_variables,
    places,
    worker_variables,
)
from samestep.launch.local.workers import Workers
from samestep.launchers.detect import detect

PLACE = Place(rank=3, size=4, local_rank=1, local_size=2, node=1, nodes=2)
ROUND = Round(run_id="abc", restarts=1, max_restarts=2, master=("host", 1234))


def test_workers_get_the_variables_of_torchrun():
    assert worker_variables(PLACE, ROUND) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RUN_ID": "abc",
        "SAMESTEP_RUN_ID": "abc",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_a_worker_detects_its_place_from_its_variables():
    found = detect(worker_variables(PLACE, ROUND))

    assert (found.place.rank, found.place.size, found.place.local_rank) == (3, 4, 1)
    assert found.master == ("host", 1234)


def test_a_joined_task_gets_the_variables_of_torchrun_without_those_of_its_agent():
    variables = place_variables(PLACE, ("host", 1))

    assert variables["RANK"] == "3"
    assert variables["MASTER_ADDR"] == "host"
    assert not any(name.startswith("TORCHELASTIC") for name in variables)
    assert "MASTER_ADDR" not in place_variables(PLACE, None)


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
    monkeypatch.setattr(local_backend, "in_foreground", lambda: foreground)
    signals = Signals(wakeup=-1)
    signals.take(number, None)

    assert signals.reach_workers is shared


def test_without_a_terminal_nothing_is_in_the_foreground(tmp_path):
    assert in_foreground(str(tmp_path / "none")) is False
    assert in_foreground(os.devnull) is False


def test_no_worker_starts_after_a_signal(monkeypatch):
    signals, started = Signals(wakeup=-1), []

    def fork(_workers, start, *_):
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
    job = SimpleNamespace(patience_s=0.0, grace_s=0.0, finishes=False)
    assert conclude(Ended(codes), Signals(wakeup=-1), job).preempted is preempted


def failure(**changes):
    return Failure(**{"rank": 0, "local_rank": 0, "pid": 1, "exit_code": 1, **changes})


def paused(steps, **changes):
    restarts, found = Restarts(100), []
    for step in steps:
        restarts.fail(failure(**changes), step)
        found.append(restarts.pause_s)
        restarts.again()
    return found


def test_pauses_double_up_to_half_a_minute_if_the_progress_is_unknown():
    assert paused([None] * 7) == [1, 2, 4, 8, 16, 30, 30]


def test_workers_that_made_progress_are_restarted_after_a_second():
    assert paused([3, 9, 20, 18, 18, 30], exit_code=-9) == [1, 1, 1, 2, 4, 1]


@pytest.mark.parametrize(
    ("first", "second", "stops"),
    [
        (({"message": "no room"}, 4), ({"message": "no room"}, 4), True),
        (({"message": "no room\nframe #0"}, 4), ({"message": "no room\nframe #1", "pid": 2}, 4), True),
        (({"message": "no room"}, 4), ({"message": "no room"}, 5), False),
        (({"message": "no room"}, 4), ({"message": "another"}, 4), False),
        (({}, None), ({}, None), False),
        (({"exit_code": -9}, 4), ({"exit_code": -9}, 4), False),
        (({"exit_code": -11}, 4), ({"exit_code": -11}, 4), True),
    ],
)
def test_the_same_failure_at_the_same_step_ends_the_restarts(first, second, stops):
    restarts = Restarts(5)
    restarts.fail(failure(**first[0]), first[1])
    assert restarts.left == 5
    restarts.again()
    restarts.fail(failure(**second[0]), second[1])
    assert restarts.is_same is stops
    assert restarts.left == (0 if stops else 4)
