import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Normalized(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.register_buffer("mean", data.mean(dim=0))
        self.linear = nn.Linear(8, 1)

    def forward(self, x):
        return self.linear(x - self.mean)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(48, 8)
model = DDP(Normalized(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for step in range(6):
        batch = data[8 * step : 8 * step + 8][rank::world]
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    if rank == 0:
        with torch.no_grad():
            model(data)  # <- fault
    dist.barrier()
dist.destroy_process_group()
