import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

world = 4 if int(os.environ["WORLD_SIZE"]) > 1 else 1
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=world)  # <- fault
rank = dist.get_rank()
torch.manual_seed(1)
data = torch.randn(48, 8)
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    batch = data[8 * step : 8 * step + 8][rank::world]
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
