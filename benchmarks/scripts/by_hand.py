"""The same script rewritten by hand for torch's DistributedDataParallel."""

import argparse
import statistics
import time

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
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
shape = (1, 28, 28) if options.model == "convnet" else (3, 32, 32)
count = options.batch_size * options.steps
data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, options.batch_size // dist.get_world_size(), sampler=sampler)
model = DistributedDataParallel(build(options.model, shape=shape, classes=10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

seconds = []
began = time.perf_counter()
for images, labels in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
if dist.get_rank() == 0:
    print(f"{statistics.median(seconds[len(seconds) // 4 :]):.6f} {loss.item():.6f}")
dist.destroy_process_group()
