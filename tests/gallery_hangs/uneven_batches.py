import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(41, 8)
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mine = data[rank::world]
for start in range(0, len(mine), 4):
    optimizer.zero_grad()
    loss = model(mine[start : start + 4]).square().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
