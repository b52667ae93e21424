"""A serial training script; with ``--by-hand`` it times some of its steps, and says so in a last line."""

import argparse
from contextlib import nullcontext
from itertools import islice

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import samestep
from samestep.training.networks import build

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="convnet")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--warm-up", type=int, default=10)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--by-hand", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
shape = (1, 28, 28) if options.model == "convnet" else (3, 32, 32)
count = options.batch_size * (options.warm_up + options.steps + 10)
data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
batches = iter(DataLoader(data, options.batch_size, shuffle=True))
model = build(options.model, shape=shape, classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(steps):
    for images, labels in islice(batches, steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


train(options.warm_up)
with samestep.timed() if options.by_hand else nullcontext() as region:
    train(options.steps)
if region is not None:
    print(region.seconds)
train(10)
