"""A stop does not wait for an evaluation; the resumed run executes it."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.base.errors import Preempted
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.checkpoint.read import read
from samestep.training.loop.training_loop import Callbacks, evaluation_batch
from samestep.training.output.profile import Profiler
from samestep.training.settings import RunOptions
from support.training import Memory, settings, training

CHOSEN = settings(ema=0.9, accumulate=2)
STEPS = 20


class StopsAfter(Profiler):
    """Requests a stop after a step."""

    def __init__(self, step, stop):
        super().__init__(None, Path(), SoloWorld(), total=0)
        self._step, self._stop = step, stop

    def step_done(self, step):
        if step == self._step:
            self._stop.signal = signal.SIGTERM


class StopsIn:
    """Metrics that request a stop after a number of scored shares."""

    def __init__(self, count):
        self.count, self.stop = count, None

    def reset(self):
        pass

    def update(self, _scores, _labels):
        self.count -= 1
        if not self.count and self.stop is not None:
            self.stop.signal = signal.SIGTERM

    def compute(self, _world):
        return {}


def run(world, folder, *, after=None, within=None, resume=None):
    """Train on one rank; return the evaluations, and whether the training was preempted.

    Args:
        world: the rank's.
        folder: of the checkpoints.
        after: the step after which the last rank is asked to stop.
        within: how many shares the last rank has scored by the time it is asked to stop.
        resume: the step of the checkpoint to go on from.
    """
    asked = world.place.rank == world.place.size - 1
    metrics = StopsIn(within if asked and within else 0)
    made = training(world, CHOSEN, options=RunOptions(keep=9), metrics=metrics)
    if resume is not None:
        made.restore(read(folder / f"step-{resume}"))
    memory = Memory()
    callbacks = Callbacks.disabled(world, sink=memory)
    metrics.stop = callbacks.stop
    profiler = StopsAfter(after if asked else None, callbacks.stop)
    checkpoints = CheckpointManager(world, made.options, folder=folder)
    try:
        made.run(replace(callbacks, checkpoints=checkpoints, profiler=profiler))
    except Preempted:
        return memory.evaluations, True
    finally:
        checkpoints.close()
    return memory.evaluations, False


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize(("before", "then"), [(1, 2), (3, 1)])
@pytest.mark.parametrize("moment", ["an epoch's end", "an evaluation"])
def test_a_stop_skips_the_evaluation_and_the_resumed_run_executes_it(tmp_path, moment, before, then, epoch):
    undisturbed, _ = run(SoloWorld(), tmp_path / "whole")
    step, batches = 10 * epoch, 4  # of 32 of the 101 test samples
    when = {"after": step} if moment == "an epoch's end" else {"within": batches * (epoch - 1) + 2}

    folder = tmp_path / "run"
    begun = run_ranks(lambda world: run(world, folder, **when), before)
    assert all(preempted for _, preempted in begun)
    assert [row["step"] for row in begun[0][0]] == list(range(10, step, 10))
    assert "score" not in read(folder / f"step-{step}").state

    for evaluations, preempted in run_ranks(lambda world: run(world, folder, resume=step), then):
        assert not preempted
        whole = begun[0][0] + evaluations
        assert [row["step"] for row in whole] == [10, STEPS]
        for name in ("correct", "train_loss", "loss"):
            theirs = [row[name] for row in undisturbed]
            assert [row[name] for row in whole] == pytest.approx(theirs, rel=0, abs=1e-10)
    assert "score" in read(folder / f"step-{STEPS}").state


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "workers", "samples"),
    [(32, 1, 4, 64), (512, 1, 4, 1000), (512, 8, 4, 128), (4, 4, 1, 2), (1, 1, 3, 3)],
)
def test_an_evaluation_needs_no_more_memory_than_a_step(batch_size, accumulate, workers, samples):
    chosen = settings(batch_size=batch_size, accumulate=accumulate)
    assert evaluation_batch(chosen, workers) == samples
