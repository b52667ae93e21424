import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(48, 8)


class Files(Dataset):
    def __len__(self):
        return len(data) // world

    def __getitem__(self, index):
        if rank == 1 and index == 9:
            raise OSError(5, "Input/output error", "images/0009.png")  # <- fault
        return data[rank + world * index]


model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Files(), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
