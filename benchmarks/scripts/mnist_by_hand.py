"""The same script rewritten by hand for torch's DistributedDataParallel."""

import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits import Digits, Net
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = Digits(sys.argv[1])
loader = DataLoader(data, 64 // dist.get_world_size(), sampler=DistributedSampler(data, shuffle=True))
model = DistributedDataParallel(Net())
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
if dist.get_rank() == 0:
    print(f"{statistics.median(seconds[len(seconds) // 4 :]):.6f} {loss.item():.6f}")
dist.destroy_process_group()
