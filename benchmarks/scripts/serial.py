"""A serial training script, as a user writes it: one network, one optimizer, a DataLoader."""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from samestep.training.networks import build

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="convnet")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

torch.manual_seed(0)
shape = (1, 28, 28) if options.model == "convnet" else (3, 32, 32)
count = options.batch_size * options.steps
data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
loader = DataLoader(data, options.batch_size, shuffle=True)
model = build(options.model, shape=shape, classes=10)
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
print(f"{statistics.median(seconds[len(seconds) // 4 :]):.6f} {loss.item():.6f}")
