import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

g = torch.Generator().manual_seed(19)
points = torch.randn(101, 3, generator=g)
classes = (points.norm(dim=1) > 1.5).long() + (points.norm(dim=1) > 2.2).long()

torch.manual_seed(1)
net = DistributedDataParallel(nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 3)))
opt = torch.optim.SGD(net.parameters(), lr=0.2)

for epoch in range(4):
    order = torch.randperm(101, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(24):
        mine = batch[rank::world]
        loss = F.cross_entropy(net(points[mine]), classes[mine])
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.detach()
        dist.all_reduce(value)
        if rank == 0:
            print(f"epoch {epoch} samples {len(batch)} loss {value.item() / world:.10f}")
dist.destroy_process_group()
