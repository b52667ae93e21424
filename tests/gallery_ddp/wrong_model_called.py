import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=world_size)
torch.set_default_dtype(torch.float64)
torch.manual_seed(12)

data = torch.randn(120, 10)
labels = (data[:, :3].sum(dim=1) > 0).long()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 20)
        self.fc2 = nn.Linear(20, 2)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


model = Classifier()
ddp_model = DDP(model)
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)

for epoch in range(4):
    order = torch.randperm(120)  # the same on all ranks
    for start in range(0, 120, 24):
        idx = order[start:start + 24][rank::world_size]
        optimizer.zero_grad()
        outputs = model(data[idx])
        loss = F.cross_entropy(outputs, labels[idx])
        loss.backward()
        optimizer.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        mean_loss /= world_size
        if rank == 0:
            print(f"Epoch {epoch} Batch {start // 24}: {mean_loss.item():.10f}")
dist.destroy_process_group()
