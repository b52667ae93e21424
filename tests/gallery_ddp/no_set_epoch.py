import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

world_size = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("RANK", 0))
if world_size > 1:
    dist.init_process_group("gloo")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.rand(96, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
y = ((x[:, 0] * 3).sin() > x[:, 1]).long()
dataset = TensorDataset(x, y)
sampler = DistributedSampler(dataset, shuffle=True) if world_size > 1 else None
loader = DataLoader(dataset, batch_size=24 // world_size, shuffle=sampler is None, sampler=sampler)

model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 2))
if world_size > 1:
    model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        value = loss.detach()
        if world_size > 1:
            dist.all_reduce(value)
        if rank == 0:
            print("epoch {} loss {:.10f}".format(epoch, value.item() / world_size))
