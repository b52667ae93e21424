import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_default_dtype(torch.float64)

x = torch.linspace(-1, 1, 96 * 6).mul(777).sin().view(96, 6)
y = (x[:, 0] * x[:, 1] > 0).long()
model = DDP(nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    for batch in torch.randperm(len(x)).split(48):
        mine = batch.chunk(world)[rank]
        loss = F.cross_entropy(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach() / world
        dist.all_reduce(loss)
        if rank == 0:
            print(f"{epoch}: {loss.item():.10f}")
dist.destroy_process_group()
