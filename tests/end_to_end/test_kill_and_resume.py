"""A run that is killed repeatedly and resumed with other numbers of workers equals the uninterrupted run."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import support.recorded_training
from support.commands import DEADLINE_S
from support.forked_commands import samestep, start

PROGRAM = support.recorded_training.__file__
SAMPLES, BATCH, EPOCHS = 320, 16, 10
TRAIN = (
    *("digits", "--subset", SAMPLES, "--batch-size", BATCH, "--epochs", EPOCHS, "--precision", "fp64"),
    *("--lr", "0.02", "--evaluate-every", EPOCHS, "--checkpoint-steps", "4", "--augment", "crop:1"),
)
KILLS = 20
SPARE = 3
"""Steps that a session may take until the kill strikes, which on no machine end the training too early."""


def run_on(workers: int) -> tuple:
    return ("run", "-n", workers, "--threads", 1, "--mode", "native", PROGRAM)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def length(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def run_and_kill(folder: Path, draw: random.Random) -> bool:
    """Start or resume the run on 1 to 3 workers and kill one of its processes some steps on.

    Returns:
        Whether it did.
    """
    sessions = length(folder / "sessions.jsonl")
    taken = folder / f"ids-{sessions}-0.jsonl"
    steps = draw.randrange(12)
    process = start(*run_on(draw.choice((1, 2, 3))), folder, steps + SPARE, *TRAIN)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while length(folder / "sessions.jsonl") == sessions or length(taken) < steps:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.02))  # anywhere in a step
        launcher = psutil.Process(process.pid)
        family = [launcher, *launcher.children()]
        draw.choice(family).kill()
        ended_well = process.wait(DEADLINE_S) == 0
        psutil.wait_procs(family[1:], DEADLINE_S)  # one that still ends holds the run folder
        return not ended_well
    except psutil.NoSuchProcess:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of an uninterrupted run by one worker, and of one that was killed `KILLS` times."""
    whole, torn = (tmp_path_factory.mktemp("runs") / name for name in ("whole", "torn"))
    done = samestep(*run_on(1), whole, 0, *TRAIN)
    assert done.code == 0, done.err
    draw = random.Random(20)
    kills = 0
    while kills < KILLS:
        assert not (torn / "result.json").exists(), f"finished after {kills} kills: train for longer"
        kills += run_and_kill(torn, draw)
    done = samestep(*run_on(2), torn, 0, *TRAIN)
    assert done.code == 0, done.err
    return whole, torn


@pytest.mark.timeout(400)
def test_the_loss_curve_is_that_of_the_uninterrupted_run(runs):
    whole, torn = (rows(folder / "metrics.jsonl") for folder in runs)

    assert [row["step"] for row in torn] == [row["step"] for row in whole]
    assert [row["samples"] for row in torn] == [row["samples"] for row in whole]
    assert [row["lr"] for row in torn] == [row["lr"] for row in whole]
    assert [row["loss"] for row in torn] == pytest.approx([row["loss"] for row in whole], rel=0, abs=1e-10)


def test_the_steps_that_were_kept_use_each_sample_of_each_epoch_once(runs):
    _, torn = runs
    sessions = rows(torn / "sessions.jsonl")
    last = len(rows(torn / "metrics.jsonl"))
    begins = [session["step"] for session in sessions]

    used = Counter()
    for number, (session, begin, end) in enumerate(zip(sessions, begins, [*begins[1:], last], strict=True)):
        for rank in range(session["world_size"] if end > begin else 0):
            survived = rows(torn / f"ids-{number}-{rank}.jsonl")[: end - begin]
            assert len(survived) == end - begin
            used.update((row["epoch"], sample) for row in survived for sample in row["ids"])

    assert len(sessions) >= KILLS + 1
    assert {session["world_size"] for session in sessions} == {1, 2, 3}
    assert used == Counter((epoch, sample) for epoch in range(EPOCHS) for sample in range(SAMPLES))


def test_the_result_is_that_of_the_uninterrupted_run(runs):
    whole, torn = (json.loads((folder / "result.json").read_text()) for folder in runs)

    for name in ("correct", "total", "epochs", "steps"):
        assert torn[name] == whole[name]
