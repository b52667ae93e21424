"""MNIST by real processes: the same steps at 1, 2 and 3 workers, and every test image counted once."""

import functools
from itertools import chain

import pytest
import torch
from torch import nn

from samestep.parallel.sharding import Position
from samestep.ranks.world.solo import SoloWorld
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.data.sets.registry import load
from samestep.training.networks import ConvNet
from support.data import shared_data
from support.tiers import long_param
from support.training import largest_difference, settings, train

SAMPLES = 400


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


MODELS = {
    "global batch norm": (ConvNet, 1_999),
    "no batch norm": (functools.partial(ConvNet, batch_norm=False), 1_999),
    "linear": (linear, 10_000),
}
"""Networks, and how many test images they score: a number that no world divides, or all."""


def mnist(data_dir, scored=10_000):
    train_set, test_set = (load("mnist", split, data_dir=data_dir) for split in ("train", "test"))
    return train_set.subset(SAMPLES), test_set if scored == len(test_set) else test_set.subset(scored)


def train_mnist(world, data_dir, name):
    """Train one epoch; return losses, weights and the score of the test images."""
    make_model, scored = MODELS[name]
    chosen = settings(epochs=1, batch_size=64, batch_norm="global")
    memory = train(world, chosen, make_model, mnist(data_dir, scored))
    return memory.losses, memory.state, (memory.result.correct, memory.result.total)


def samples_of_each_step(world, data_dir):
    """Return the set of samples that all ranks together train on in each step of two epochs."""
    loader = ImageLoader(mnist(data_dir)[0], LoaderOptions(batch_size=64), place=world.place)
    steps = [batch.ids.tolist() for epoch in range(2) for batch in loader.epoch(Position(3, epoch))]
    gathered = world.all_gather_objects(steps)
    return [sorted(chain.from_iterable(parts)) for parts in zip(*gathered, strict=True)]


@pytest.fixture(scope="module")
def serial():
    """The runs of one worker, by (folder, network)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield functools.cache(functools.partial(train_mnist, SoloWorld()))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [2, long_param(3)])
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_curve_is_the_serial_one_and_each_test_image_counts_once(processes, serial, size, name):
    data_dir = shared_data("mnist")
    losses, weights, score = serial(data_dir, name)

    for rank_losses, rank_weights, rank_score in processes.run(train_mnist, size, data_dir, name):
        assert rank_losses == pytest.approx(losses, rel=0, abs=1e-10)
        assert largest_difference(rank_weights, weights) < 1e-10
        assert rank_score == score
    assert score[1] == MODELS[name][1]


@pytest.mark.parametrize("size", [long_param(2), 3])
def test_each_step_trains_on_the_serial_samples(processes, size):
    data_dir = shared_data("mnist")
    serial_steps = samples_of_each_step(SoloWorld(), data_dir)

    assert processes.run(samples_of_each_step, size, data_dir) == [serial_steps] * size
    assert sorted(chain.from_iterable(serial_steps[: len(serial_steps) // 2])) == list(range(SAMPLES))
