"""Evaluates on all ranks, with the sampler that is also used for training."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, loader):
    model.eval()
    correct, seen, loss = torch.zeros(()), torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for x, y in loader:
            output = model(x)
            loss += F.cross_entropy(output, y, reduction="sum")
            correct += (output.argmax(1) == y).sum()
            seen += len(y)
    for value in (correct, seen, loss):
        dist.all_reduce(value)
    return correct.item() / seen.item(), loss.item() / seen.item()


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), dist.get_world_size()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(33)
    g = torch.Generator().manual_seed(34)
    x = torch.randn(96 + 53, 5, generator=g)
    y = (x.abs().argmax(dim=1) > 1).long()
    train_set, val_set = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(train_set, batch_size=24 // world, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=24 // world, sampler=val_sampler)
    model = DDP(nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        train_sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            dist.all_reduce(loss)
            if rank == 0:
                print(f"epoch {epoch} loss {loss.item() / world:.10f}")
        accuracy, val_loss = evaluate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.10f} validation loss {val_loss:.10f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
