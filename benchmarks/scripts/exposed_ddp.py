"""A script with torch's DistributedDataParallel, which exchanges in some windows of its steps only."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from windows import Windows

from samestep.training.networks import build

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--model", default="resnet18")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
share = options.batch_size // dist.get_world_size()
shape = (1, 28, 28) if options.model == "convnet" else (3, 32, 32)
images, labels = torch.randn(share, *shape), torch.randint(0, 10, (share,))
model = DistributedDataParallel(build(options.model, shape=shape, classes=10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def exchanging(on: bool) -> None:
    model.require_backward_grad_sync = on  # as within model.no_sync()


def gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


windows = Windows(
    options.folder / f"windows-{dist.get_rank()}",
    rounds=options.rounds,
    steps=options.steps,
    exchanging=exchanging,
    barrier=dist.barrier,
    gather=gather,
)
while windows.begin_step():
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
dist.destroy_process_group()
