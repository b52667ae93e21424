"""Each rank stops early by the loss of its own validation samples: a rank leaves, and the others wait for it."""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
PATIENCE = 3


def make_data(number, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 10, generator=generator)
    noise = torch.randn(number, generator=generator)
    return TensorDataset(x, (x[:, :3].sum(dim=1) + noise > 0).long())


@torch.no_grad()
def validate(model, loader, size):
    model.eval()
    loss = sum(F.cross_entropy(model(x), y) for x, y in loader) / len(loader)
    model.train()
    if not WRONG:
        dist.all_reduce(loss)
        loss /= size
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = make_data(128, 0), make_data(64, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=16 // size, sampler=sampler)
    test_loader = DataLoader(test, batch_size=32 // size, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    best, waited = float("inf"), 0
    for epoch in range(40):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metric = validate(model.module, test_loader, size)
        waited = 0 if metric < best else waited + 1
        best = min(best, metric)
        if waited == PATIENCE:
            break
    if rank == 0:
        print(f"stopped after epoch {epoch}: best loss {best:.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
