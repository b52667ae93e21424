"""A serial script whose copies exchange in some windows of its steps, and not in others."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from windows import Windows, exchange_of_worlds

from samestep.ranks.world.process_group import current
from samestep.training.networks import build

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--model", default="resnet18")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()

torch.manual_seed(0)
shape = (1, 28, 28) if options.model == "convnet" else (3, 32, 32)
images = torch.randn(options.batch_size, *shape)
labels = torch.randint(0, 10, (options.batch_size,))
model = build(options.model, shape=shape, classes=10)
for module in model.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        module.momentum = 0.0
# Nothing changes, so the copies stay equal also where they do not exchange.
optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
world = current()
windows = Windows(
    options.folder / f"windows-{world.place.rank}",
    rounds=options.rounds,
    steps=options.steps,
    exchanging=exchange_of_worlds(),
    barrier=world.barrier,
    gather=world.all_gather_objects,
)
while windows.begin_step():
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
