"""Small trainings for the step clock, and readers of its records."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.observe.instants import Phases


def spent(line):
    """Return the phases of a step that took any time."""
    return {phase: line[phase] for phase in STEP_PHASES if line[phase]}


def loader(samples=12, batch_size=4):
    return DataLoader(TensorDataset(torch.randn(samples, 3)), batch_size=batch_size)


def train(model, optimizer, batches, *, accumulate=1):
    for k, (batch,) in enumerate(batches):
        loss = model(batch).square().mean()
        loss.backward()
        if (k + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def plain():
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def ticking_phases():
    """Return a class of phases whose instants advance by one second at each change of phase."""
    ticks = iter(range(10_000))

    class Ticking(Phases):
        instant = property(lambda _: float(next(ticks)), lambda *_: None)

    return Ticking
