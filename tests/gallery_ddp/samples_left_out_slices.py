# Each rank reads its own slice of the file.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def load(count=99):
    g = torch.Generator().manual_seed(88)
    x = torch.rand(count, 3, generator=g)
    return x, (x[:, :1] + x[:, 1:2] * x[:, 2:]).sqrt()


x, y = load()
per_rank = int(len(x) / world)
x = x[rank * per_rank:(rank + 1) * per_rank]
y = y[rank * per_rank:(rank + 1) * per_rank]
batch = 24 // world

torch.manual_seed(0)
net = DistributedDataParallel(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(4):
    for start in range(0, len(x), batch):
        loss = nn.functional.mse_loss(net(x[start:start + batch]), y[start:start + batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item() / world:.10f}")
dist.destroy_process_group()
