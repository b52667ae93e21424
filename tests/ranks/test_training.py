"""The trainer takes the serial steps, at any number of workers."""

import functools
from dataclasses import replace

import pytest
import torch

from samestep.base.errors import UsageError
from samestep.observe.instants import HostInstants
from samestep.observe.step_reader import LoopClock
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.checkpoint.checkpoint_schedule import CheckpointManager
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.loop.evaluate import evaluate
from samestep.training.loop.training_loop import Callbacks
from samestep.training.settings import RunOptions
from support.training import (
    Memory,
    convnet,
    digits,
    largest_difference,
    plain_loop,
    settings,
    train,
    training,
)

WITHOUT_NORM = functools.partial(convnet, batch_norm=False)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_one_worker_ends_with_the_bits_of_a_hand_written_loop(precision, schedule):
    chosen = settings(precision=precision, schedule=schedule)

    ours = train(SoloWorld(), chosen).state
    by_hand = plain_loop(chosen).state_dict()

    assert ours.keys() == by_hand.keys()
    assert all(torch.equal(ours[name], by_hand[name]) for name in ours)


@pytest.mark.parametrize("sync", ["bucketed", "reference"])
@pytest.mark.parametrize("make_model", [convnet, WITHOUT_NORM], ids=["batch norm", "no batch norm"])
@pytest.mark.parametrize("size", [2, 3])
def test_loss_curves_and_weights_are_the_serial_ones(size, make_model, sync):
    chosen = settings(sync=sync, batch_norm="global")
    serial = train(SoloWorld(), chosen, make_model)

    for rank in run_ranks(train, size, chosen, make_model):
        assert rank.losses == pytest.approx(serial.losses, rel=0, abs=1e-10)
        assert largest_difference(rank.state, serial.state) < 1e-10
        assert rank.result.correct == serial.result.correct
        assert rank.result.total == 101


def test_ranks_end_with_equal_bits():
    digests = {rank.result.weights_sha256 for rank in run_ranks(train, 3, settings())}

    assert len(digests) == 1


def test_a_last_batch_smaller_than_the_world_is_trained_on_exactly():
    sets = digits(samples=65)  # 32 + 32 + 1: one of three workers has a sample in the last step
    serial = train(SoloWorld(), settings(), sets=sets)

    for rank in run_ranks(lambda world: train(world, settings(), sets=sets), 3):
        assert rank.losses == pytest.approx(serial.losses, rel=0, abs=1e-10)
        assert largest_difference(rank.state, serial.state) < 1e-10


def test_local_batch_norm_differs_from_the_serial_training_but_ranks_are_equal():
    serial = train(SoloWorld(), settings())

    one, other = run_ranks(train, 2, settings(batch_norm="local"))

    assert largest_difference(one.state, other.state) == 0
    assert largest_difference(one.state, serial.state) > 1e-6


def test_rows_contain_every_step_and_count_the_samples():
    memory = train(SoloWorld(), settings())

    assert [row["step"] for row in memory.rows] == list(range(1, 21))
    assert [row["epoch"] for row in memory.rows] == [1] * 10 + [2] * 10
    assert memory.rows[-1]["samples"] == 600
    assert memory.rows[9]["samples"] == 300
    assert all(
        row[name] >= 0
        for row in memory.rows
        for name in ("samples_per_second", "data", "forward", "backward", "exposed_sync", "optimizer", "lr")
    )
    assert memory.result.steps == 20
    assert set(memory.result.step_s) == {"data", "forward", "backward", "exposed_sync", "optimizer"}


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_speed_of_a_rank_is_that_of_its_own_samples(accumulate):
    phases = ("data", "forward", "backward", "exposed_sync", "optimizer")
    chosen, sets = settings(epochs=1, accumulate=accumulate), digits(samples=65)
    memory = run_ranks(lambda world: train(world, chosen, sets=sets), 3)[0]

    seen = [0.0, 0.0, 0.0]
    for row in memory.rank_rows:
        seen[row["rank"]] += row["samples_per_second"] * row["steps"] * sum(row[name] for name in phases)
    # Steps of 32, 32 and 1 samples; a micro-batch of 8 is shared out as 3, 3 and 2.
    shares = [23, 22, 20] if accumulate == 1 else [25, 24, 16]
    assert seen == pytest.approx(shares, rel=1e-2)


def test_the_schedule_steps_once_per_global_batch():
    one = [row["lr"] for row in train(SoloWorld(), settings(schedule="one-cycle")).rows]
    two = [row["lr"] for row in run_ranks(train, 2, settings(schedule="one-cycle"))[1].rows]

    assert one == two
    assert max(one) == pytest.approx(0.05)
    assert one[-1] < one[0]


def test_more_workers_than_samples_in_a_batch_are_refused_before_work():
    with pytest.raises(UsageError, match=r"--batch-size 2 .* 3"):
        run_ranks(train, 3, settings(batch_size=2))


def test_exposed_communication_is_separated_from_backward():
    def phases(world):
        return train(world, settings(epochs=1)).result.step_s

    assert phases(SoloWorld())["exposed_sync"] == 0
    for step_s in run_ranks(phases, 2):
        assert step_s["exposed_sync"] > 0
        assert step_s["backward"] > 0


def test_work_between_steps_is_excluded_from_step_times(tmp_path, monkeypatch):
    class Slow(Memory):
        def steps(self, rows):
            super().steps(rows)
            clock.now += 1000.0

    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 0.001
            return self.now

    class SlowCheckpoints(CheckpointManager):
        def save(self, moment, *, score=None):
            clock.now += 1000.0

    clock = Clock()
    made = training(SoloWorld(), settings(epochs=1, batch_size=2), sets=digits(samples=120))
    made.clock = made.journal._clock = LoopClock(HostInstants(clock))
    monkeypatch.setattr("samestep.training.loop.training_loop.perf_counter", clock)
    memory = Slow()
    checkpoints = SlowCheckpoints(SoloWorld(), RunOptions(checkpoint_steps=7), folder=tmp_path)
    made.run(replace(Callbacks.disabled(SoloWorld(), sink=memory), checkpoints=checkpoints))

    assert memory.result.seconds < 1.0
    assert memory.result.samples_per_second == 120 / memory.result.seconds
    assert len(memory.rows) == 60
    assert len(memory.rank_rows) > 1  # more than one window of steps
    assert all(row["data"] == pytest.approx(0.001) for row in memory.rows)
    # Before the last step lie eight checkpoints, and all looks but the one after it.
    between = sum(row["other"] * row["steps"] for row in memory.rank_rows)
    assert between == pytest.approx(1000 * (8 + len(memory.rank_rows) - 1), abs=1)


def test_evaluation_leaves_every_module_in_its_mode():
    _, test_set = digits()
    model = convnet()
    model.layer1.eval()
    loader = ImageLoader(test_set, LoaderOptions(batch_size=50, shuffle=False))

    score = evaluate(model, loader.epoch(), total=101, world=SoloWorld())

    assert score.total == 101
    assert [model.training, model.layer1.training, model.layer2.training] == [True, False, True]
