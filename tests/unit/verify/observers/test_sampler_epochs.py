"""Samplers whose epoch is never set are noted, and no others."""

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

from samestep.verify.observers.check import Checks
from samestep.verify.observers.sampler_epochs import SamplerEpochs

DATA = TensorDataset(torch.randn(12, 3))


class ByEpoch(Sampler):
    """Shuffles by the number of the epoch."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return len(DATA)

    def __iter__(self):
        return iter(torch.randperm(len(DATA), generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def set_epoch(self, epoch):
        self.epoch = epoch


class InOrder(ByEpoch):
    """Does not shuffle."""

    def __iter__(self):
        return iter(range(len(DATA)))


class Drawing(ByEpoch):
    """Shuffles by the global generator, which goes on by itself."""

    def __iter__(self):
        return iter(torch.randperm(len(DATA)).tolist())


def noted(loader, *, epochs=2, trains=True, set_epoch=False):
    """Return the codes of the notes on a training with a loader."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checks = Checks([SamplerEpochs])
    with checks.attached():
        for epoch in range(epochs):
            if set_epoch:
                loader.sampler.set_epoch(epoch)
            for (x,) in loader:
                model(x).sum().backward()
                if trains:
                    optimizer.step()
    return [note.code for note in checks.notes()]


def of_batches(sampler):
    return DataLoader(DATA, batch_sampler=BatchSampler(sampler, 4, drop_last=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_never_set_is_noted(workers):
    loader = DataLoader(DATA, batch_size=4, sampler=ByEpoch(), num_workers=workers)
    assert noted(loader) == ["same-order-in-epochs"]


def test_the_sampler_of_a_batch_sampler_counts():
    assert noted(of_batches(ByEpoch())) == ["same-order-in-epochs"]


@pytest.mark.parametrize(
    ("sampler", "how"),
    [
        (ByEpoch, {"set_epoch": True}),
        (ByEpoch, {"epochs": 1}),
        (ByEpoch, {"trains": False}),  # an evaluation may have one order
        (InOrder, {}),
        (Drawing, {}),
        (lambda: RandomSampler(DATA), {}),
    ],
)
def test_other_samplers_and_uses_are_not_noted(sampler, how):
    assert noted(DataLoader(DATA, batch_size=4, sampler=sampler()), **how) == []
