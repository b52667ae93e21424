"""Each rank computes with as many threads as the host has cores, so threads of the ranks compete for them."""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(os.cpu_count() if WRONG else max(1, os.cpu_count() // size))
    torch.manual_seed(0)
    images = torch.randn(128, 1, 20, 20)
    data = TensorDataset(images, (images.mean(dim=(1, 2, 3)) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(256, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
