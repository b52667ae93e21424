"""A function that reports metrics is a barrier, and a rank calls it only if its own loss has improved."""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def report(metrics, model, rank):
    """Store a checkpoint with its metrics; the training library waits here for all workers"""
    dist.barrier()
    if rank == 0:
        torch.save({"model": model.state_dict(), **metrics}, "reported.pt")


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(192, 10)
    data = TensorDataset(x, (x[:, :3].sum(dim=1) + torch.randn(192) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best = float("inf")
    for epoch in range(10):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        if not WRONG:
            dist.all_reduce(total)
            total /= size
        if total < best:
            best = total
            report({"loss": total.item(), "epoch": epoch}, model.module, rank)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
