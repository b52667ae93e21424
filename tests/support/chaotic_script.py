"""A serial script for tests of faults: ``chaotic_script.py KIND STEPS PROGRESS WEIGHTS``.

It writes its weights, and keeps in the file PROGRESS the steps that it has completed, and what it does now.
It takes its time over each call and each backward: on a fast machine no fault would strike in them.
"""

import copy
import mmap
import struct
import sys
import time
from itertools import chain
from pathlib import Path

import torch
from torch import nn

PACE_S = 0.004
PAUSE_S = 0.4
STARTS, PAUSES, CALLS, DIFFERENTIATES, ENDS = range(5)
PROGRESS = struct.Struct("=2q")
"""The completed steps, and one of the numbers above."""


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(PACE_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(PACE_S)
        return gradient.clone()


class Perceptron(nn.Module):
    def __init__(self, inputs=6, outputs=3):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 16), nn.Linear(16, outputs)

    def forward(self, x):
        return self.last(torch.tanh(Slow.apply(self.first(x))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.last = nn.Linear(4 * 16, 3)

    def forward(self, x):
        hidden = torch.relu(self.norm(Slow.apply(self.conv(x))))
        return self.last(self.drop(hidden.flatten(1)))


class Progress:
    def __init__(self, path):
        with Path(path).open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), PROGRESS.size)
        self.step = 0

    def now(self, what):
        PROGRESS.pack_into(self.memory, 0, self.step, what)

    def completed(self):
        self.step += 1
        self.now(PAUSES)


def train_step(model, optimizer, given, progress, *, retain=False):
    progress.now(CALLS)
    found = model(given)
    loss = found.square().mean()
    optimizer.zero_grad()
    progress.now(DIFFERENTIATES)
    loss.backward(retain_graph=retain)
    if retain:
        (found.abs().mean() * 0.1).backward()
    progress.now(PAUSES)
    optimizer.step()
    progress.completed()
    return loss.item()


def supervised(model, shape, steps, progress, **how):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        yield train_step(model, optimizer, torch.randn(shape), progress, **how)


def adversarial(generator, critic, steps, progress):
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(steps):
        progress.now(CALLS)
        made = generator(torch.randn(12, 6))
        loss = critic(made.detach()).square().mean() - critic(torch.randn(12, 3)).mean()
        of_critic.zero_grad()
        progress.now(DIFFERENTIATES)
        loss.backward()
        of_critic.step()
        progress.now(CALLS)
        found = -critic(made).mean()
        of_generator.zero_grad()
        progress.now(DIFFERENTIATES)
        found.backward()
        progress.now(PAUSES)
        of_generator.step()
        progress.completed()
        yield loss.item() + found.item()


def evaluated(model, steps, progress):
    """Train, and evaluate now and then; no call is made meanwhile for a long time."""
    for loss in supervised(model, (12, 6), steps, progress):
        yield loss
        if progress.step % 10 == 0:
            with torch.no_grad():
                for _ in range(3):
                    progress.now(CALLS)
                    yield model(torch.ones(7, 6)).sum().item()
                    progress.now(PAUSES)
                    time.sleep(PAUSE_S)


def interrupted(model, steps, progress):
    """Train; begin a step again that Ctrl-C has interrupted."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    while progress.step < steps:
        weights = {name: one.clone() for name, one in model.state_dict().items()}
        momenta, generator = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
        before = progress.step
        try:
            loss = train_step(model, optimizer, torch.randn(12, 6), progress)
        except KeyboardInterrupt:
            progress.step = before
            model.load_state_dict(weights)
            optimizer.load_state_dict(momenta)
            torch.set_rng_state(generator)
        else:
            yield loss


def main(kind, steps, progress, path):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    models = {
        "perceptron": lambda: [Perceptron()],
        "convolutions": lambda: [Convolutions()],
        "adversarial": lambda: [Perceptron(6, 3), Perceptron(3, 1)],
        "retained": lambda: [Perceptron()],
        "evaluated": lambda: [Perceptron()],
        "interrupted": lambda: [Perceptron()],
    }[kind]()
    if kind == "adversarial":
        losses = adversarial(*models, steps, progress)
    elif kind == "evaluated":
        losses = evaluated(*models, steps, progress)
    elif kind == "interrupted":
        losses = interrupted(*models, steps, progress)
    else:
        shape = (12, 1, 6, 6) if kind == "convolutions" else (12, 6)
        losses = supervised(*models, shape, steps, progress, retain=kind == "retained")
    for number, loss in enumerate(losses):
        print(number, f"{loss:.9f}", flush=True)
    weights = list(chain.from_iterable(one.state_dict().values() for one in models))
    torch.save(weights, path)
    progress.now(ENDS)


if __name__ == "__main__":
    progress = Progress(sys.argv[3])
    main(sys.argv[1], int(sys.argv[2]), progress, sys.argv[4])
