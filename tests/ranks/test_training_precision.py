"""Overflow on one rank: all ranks find it, skip the same step and keep equal scales and weights."""

import copy
from types import SimpleNamespace

import pytest
import torch

from samestep.observe.instants import HostInstants
from samestep.observe.step_reader import LoopClock
from samestep.parallel.gradients.replicate import replicate
from samestep.parallel.sharding import Position
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.data.loader import Batch
from samestep.training.loop.learner import Average, build_optimizer, build_schedule
from samestep.training.loop.precision import Precision
from samestep.training.loop.step import ReplicatedStep
from samestep.training.networks import ConvNet
from samestep.training.settings import Settings

CPU = torch.device("cpu")
SAMPLES, STEPS = 12, 4


def settings(**changes):
    return Settings(**{"epochs": 1, "batch_size": SAMPLES, "lr": 0.05, "precision": "fp16", **changes})


def batch():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, 1, 8, 8, generator=draw), torch.randint(0, 10, (SAMPLES,), generator=draw)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ConvNet(size=8)


def train(world, chosen, model, *, broken=None):
    """Train on one rank's share.

    Args:
        world: shares the batch out.
        chosen: settings.
        model: a copy of it is trained.
        broken: (rank, step) at which that rank's loss overflows.

    Returns:
        weights and scale after each step, and their average after the last.
    """
    precision = Precision.of(chosen.precision, world.device, workers=world.place.size)
    model = copy.deepcopy(model).to(precision.weights)
    average = Average(model, 0.5)
    optimizer = build_optimizer(model, chosen)
    images, labels = (part.tensor_split(world.place.size)[world.place.rank] for part in batch())
    seen = []
    with replicate(model, world, sync=chosen.sync) as replicas:
        learner = SimpleNamespace(
            model=model,
            optimizer=optimizer,
            schedule=build_schedule(optimizer, chosen, steps_per_epoch=STEPS),
            precision=precision,
            average=average,
        )
        clock = LoopClock(HostInstants())
        step = ReplicatedStep(learner=learner, settings=chosen, forward=model, replicas=replicas, clock=clock)
        for count in range(STEPS):
            overflows = broken == (world.place.rank, count)
            share = len(labels) * world.place.size / SAMPLES
            step(
                Batch(
                    images=images.to(precision.images),
                    labels=labels,
                    weight=float("inf") if overflows else share,
                    global_count=SAMPLES,
                    ids=torch.arange(len(labels)),
                    after=Position(),
                )
            )
            weights = {name: value.detach().clone() for name, value in model.named_parameters()}
            seen.append((weights, precision.state_dict().get("scale")))
        replicas.check()
    return seen, average.state_dict()


def assert_equal(one, other):
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("sync", ["bucketed", "reference"])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(
    "options", [{"momentum": 0.9, "schedule": "cosine"}, {"optimizer": "adamw"}], ids=str
)
@pytest.mark.parametrize("broken", [(1, 0), (2, 2), (0, 3)], ids=str)
def test_an_overflow_on_one_rank_is_skipped_by_all(broken, options, clip, sync):
    chosen = settings(sync=sync, clip_norm=clip, **options)
    model = network()
    ranks = run_ranks(lambda world: train(world, chosen, model, broken=broken), 3)
    initial = dict(model.named_parameters())

    for steps, average in ranks:
        weights, scales = zip(*steps, strict=True)
        before = weights[broken[1] - 1] if broken[1] else initial
        assert_equal(before, weights[broken[1]])
        expected = [2.0**16 if step < broken[1] else 2.0**15 for step in range(STEPS)]
        assert scales == pytest.approx(expected, rel=1e-6)  # float32 holds a third of them so well
        assert scales == tuple(scale for _, scale in ranks[0][0])
        assert all(value.isfinite().all() for value in weights[-1].values())
        assert_equal(weights[-1], ranks[0][0][-1][0])
        assert_equal(average, ranks[0][1])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_loss_scales_are_those_of_one_worker(size):
    model = network()
    serial = [scale for _, scale in train(SoloWorld(), settings(), model)[0]]

    for steps, _ in run_ranks(lambda world: train(world, settings(), model), size):
        assert [scale for _, scale in steps] == pytest.approx(serial, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("fp64", 1e-12), ("fp32", 1e-5), ("fp16", 0.02), ("bf16", 0.2), ("bf16-true", 0.5), ("fp16-true", 0.1)],
)
def test_each_precision_takes_the_serial_steps_within_its_rounding(precision, tolerance):
    chosen = settings(precision=precision)
    model = network()
    serial = flat(train(SoloWorld(), chosen, model)[0][-1][0])
    taken = serial - flat(dict(model.named_parameters()))

    for steps, _ in run_ranks(lambda world: train(world, chosen, model), 2):
        assert (flat(steps[-1][0]) - serial).norm() <= tolerance * taken.norm()


def flat(weights):
    return torch.cat([value.detach().double().flatten() for value in weights.values()])


@pytest.mark.parametrize("sync", ["bucketed", "reference"])
def test_channels_last_takes_the_serial_steps(sync):
    chosen = settings(precision="fp64", sync=sync)
    model = network()
    serial = train(SoloWorld(), chosen, model)[0][-1][0]
    relaid = network().to(memory_format=torch.channels_last)
    chosen = settings(precision="fp64", sync=sync, channels_last=True)

    for steps, _ in run_ranks(lambda world: train(world, chosen, relaid), 2):
        for name, value in steps[-1][0].items():
            torch.testing.assert_close(value, serial[name], rtol=1e-10, atol=1e-12)
