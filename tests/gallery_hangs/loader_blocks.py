import queue

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(48, 8)
batches = queue.Queue()
for step in range(6):
    if step < 3 or rank == 0:
        batches.put(data[8 * step : 8 * step + 8][rank::world])

model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    batch = batches.get()  # <- fault
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
