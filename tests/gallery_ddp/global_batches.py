# Regression: every rank knows the order of all samples and computes its part of each batch.
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

BATCH = 24
g = torch.Generator().manual_seed(11)
x = torch.rand(101, 4, generator=g) * 4 - 2
y = torch.sin(x).sum(dim=1, keepdim=True) + 0.1 * torch.randn(101, 1, generator=g)
x_val = torch.rand(37, 4, generator=g) * 4 - 2
y_val = torch.sin(x_val).sum(dim=1, keepdim=True)

torch.manual_seed(0)
net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)))
opt = torch.optim.Adam(net.parameters(), lr=0.01)

for epoch in range(5):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(BATCH):
        # 101 = 4 * 24 + 5: the last batch leaves unequal parts
        mine = batch.tensor_split(world)[rank]
        loss = F.mse_loss(net(x[mine]), y[mine], reduction="sum") / len(batch)
        opt.zero_grad()
        # DDP divides the sum over the ranks by their number
        (loss * world).backward()
        opt.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"loss {total.item():.10f}")
    with torch.no_grad():
        part = torch.arange(len(x_val)).tensor_split(world)[rank]
        error = F.mse_loss(net(x_val[part]), y_val[part], reduction="sum")
        dist.all_reduce(error)
    if rank == 0:
        print(f"epoch {epoch} validation {error.item() / len(x_val):.10f}")
dist.destroy_process_group()
