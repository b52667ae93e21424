"""Small trainings to compare, on the digits, which need no download."""

import math

import torch
from torch import nn

from samestep.training.data.sets.registry import load
from samestep.training.loop.training_loop import Callbacks, Training
from samestep.training.networks import ConvNet
from samestep.training.settings import Settings


class Memory:
    """A sink that keeps the rows in memory."""

    def __init__(self):
        self.rows = []
        self.rank_rows = []
        self.evaluations = []
        self.state = None
        self.result = None

    def steps(self, rows):
        self.rows.extend(rows)

    def ranks(self, rows):
        self.rank_rows.extend(rows)

    def evaluation(self, row):
        self.evaluations.append(row)

    def finish(self, result):
        self.result = result

    @property
    def losses(self):
        return [row["loss"] for row in self.rows]


def digits(samples=300, test_samples=101):
    """A part of the digits; the sizes divide by nothing that matters."""
    return load("digits", "train").subset(samples), load("digits", "test").subset(test_samples)


def settings(**changes):
    return Settings(**{"epochs": 2, "batch_size": 32, "lr": 0.05, "precision": "fp64", **changes})


def convnet(*, batch_norm=True) -> nn.Module:
    return ConvNet(size=8, batch_norm=batch_norm)


def training(world, chosen, make_model=convnet, sets=None, **more):
    train_set, test_set = digits() if sets is None else sets
    return Training(make_model, train_set=train_set, test_set=test_set, settings=chosen, world=world, **more)


def train(world, chosen, make_model=convnet, sets=None, **more):
    """Train on one rank of `world`; return the sink."""
    made = training(world, chosen, make_model, sets, **more)
    memory = Memory()
    made.run(Callbacks.disabled(world, sink=memory))
    memory.state = {name: tensor.clone() for name, tensor in made.learner.model.state_dict().items()}
    return memory


def largest_difference(one, other):
    """The largest absolute difference between two state dicts of equal keys."""
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def plain_loop(chosen, make_model=convnet, sets=None):
    """Train by a loop of plain PyTorch; return the model."""
    from samestep.parallel.sharding import epoch_order

    train_set, _ = digits() if sets is None else sets
    dtype = {"fp32": torch.float32, "fp64": torch.float64}[chosen.precision]
    torch.manual_seed(chosen.seed)
    model = make_model().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen.lr, momentum=chosen.momentum, fused=True)
    schedule = None
    if chosen.schedule == "cosine":
        steps = chosen.epochs * -(-len(train_set) // chosen.batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: (1 + math.cos(math.pi * (step / steps))) / 2
        )
    scale = torch.tensor(1 / (train_set.white * train_set.std[0]), dtype=dtype)
    shift = torch.tensor(train_set.mean[0] / train_set.std[0], dtype=dtype)
    for epoch in range(chosen.epochs):
        order = torch.from_numpy(epoch_order(len(train_set), seed=chosen.seed, epoch=epoch))
        for ids in order.split(chosen.batch_size):
            images = train_set.images[ids].to(dtype) * scale - shift
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), train_set.labels[ids])
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
    return model
