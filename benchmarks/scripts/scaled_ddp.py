"""A script with torch's DistributedDataParallel; with ``--by-hand`` it times some of its steps."""

import argparse
import time
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from samestep.training.networks import build

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="convnet")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--warm-up", type=int, default=10)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--by-hand", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
shape = (1, 28, 28) if options.model == "convnet" else (3, 32, 32)
count = options.batch_size * (options.warm_up + options.steps + 10)
data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
sampler = DistributedSampler(data, shuffle=True)
batches = iter(DataLoader(data, options.batch_size // dist.get_world_size(), sampler=sampler))
model = DistributedDataParallel(build(options.model, shape=shape, classes=10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(steps):
    for images, labels in islice(batches, steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


train(options.warm_up)
if options.by_hand:
    dist.barrier()
    began = time.perf_counter()
train(options.steps)
if options.by_hand:
    dist.barrier()
    if dist.get_rank() == 0:
        print(time.perf_counter() - began)
train(10)
dist.destroy_process_group()
