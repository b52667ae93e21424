import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
world_size = dist.get_world_size()
torch.set_default_dtype(torch.float64)
torch.manual_seed(5)

inputs = torch.randn(120, 4)
targets = (inputs ** 2).sum(dim=1, keepdim=True).sqrt()
# the batch is shared among the workers
train_loader = DataLoader(TensorDataset(inputs, targets), batch_size=24 // world_size, shuffle=True)

model = DDP(nn.Sequential(nn.Linear(4, 24), nn.Softplus(), nn.Linear(24, 1)))
loss_fn = nn.L1Loss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    for step, (x, y) in enumerate(train_loader):
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = loss.detach()
        dist.all_reduce(logged, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"{epoch:2d} {step:3d} {logged.item() / world_size:.10f}")
dist.destroy_process_group()
