import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

MICRO_BATCHES = 2


def data(n):
    g = torch.Generator().manual_seed(n)
    x = torch.randn(n, 8, generator=g)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def evaluate(model, test, rank, world_size, device):
    correct = torch.zeros(1)
    shard = Subset(test, range(rank, len(test), world_size))
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(shard, batch_size=16):
            correct += (model.module(x).argmax(1) == y).sum()
    model.train()
    dist.all_reduce(correct)
    return correct.item() / len(test)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = data(192), data(45)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    sampler = DistributedSampler(train, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(train, batch_size=24 // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader):
            is_last = batch % MICRO_BATCHES == MICRO_BATCHES - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y)
                (loss / MICRO_BATCHES).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        accuracy = evaluate(model, test, rank, world_size, "cpu")
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item() / world_size:.4f} accuracy {accuracy:.4f}")
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
