import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(61)
    x = torch.randn(103, 4)
    y = x.cumsum(dim=1)[:, 1:].cos()
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss = loss.detach() / world_size
            dist.all_reduce(loss)
            if rank == 0:
                print(f"epoch {epoch} loss {loss.item():.10f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
