"""Each rank evaluates the whole validation set, for early stopping; rank 0 prints."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=g)
    return TensorDataset(x, x[:, :1].sin() + x[:, 1:2] ** 2)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = sum(F.mse_loss(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return total / len(loader.dataset)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train_set, valid_set = make(96, 0), make(41, 1)
    sampler = DistributedSampler(train_set, shuffle=True)
    loader = DataLoader(train_set, batch_size=24 // world, sampler=sampler)
    valid_loader = DataLoader(valid_set, batch_size=16)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    best, patience = float("inf"), 3
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        value = validate(model.module, valid_loader)
        if rank == 0:
            print(f"epoch {epoch} validation {value:.4f}")
        patience = 3 if value < best else patience - 1
        best = min(best, value)
        if not patience:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
