import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_default_dtype(torch.float64)
torch.manual_seed(13)

x = torch.randn(97, 5)
y = x.exp().sum(dim=1, keepdim=True).log()
# 97 samples: the first rank has one more than the others, and so one more batch
mine = Subset(TensorDataset(x, y), range(rank, 97, world))
loader = DataLoader(mine, batch_size=24 // world)

model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        if rank == 0:
            print("epoch %d loss %.10f" % (epoch, loss.item()))
    dist.barrier()
dist.destroy_process_group()
