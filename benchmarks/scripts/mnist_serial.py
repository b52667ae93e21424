"""MNIST, as a serial script."""

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from digits import Digits, Net
from torch.utils.data import DataLoader

torch.manual_seed(0)
loader = DataLoader(Digits(sys.argv[1]), 64, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

seconds = []
began = time.perf_counter()
for step, (images, labels) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    if step + 1 == int(sys.argv[2]):
        break
print(f"{statistics.median(seconds[len(seconds) // 4 :]):.6f} {loss.item():.6f}")
