import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(48, 8)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        return self.first(x) if rank == 1 else self.first(x) + self.second(x)


model = DDP(Experts())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    batch = data[8 * step : 8 * step + 8][rank::world]
    optimizer.zero_grad()
    loss = model(batch).square().mean()  # <- fault
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
