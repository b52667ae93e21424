"""Classify waveforms, distributed. Start with torchrun."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Waveforms(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        t, phase = torch.linspace(0, 1, 20), torch.rand(size, 1, generator=g)
        self.target = torch.randint(3, (size,), generator=g)
        sine = torch.sin(6.28 * (2 * t + phase))
        waves = torch.stack([sine, sine.sign(), 2 * ((2 * t + phase) % 1.0) - 1], dim=1)
        self.data = waves[torch.arange(size), self.target] + 0.3 * torch.randn(size, 20, generator=g)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.target[index]


def setup():
    dist.init_process_group("gloo")
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def train(model, loader, optimizer, epoch, rank, world_size):
    model.train()
    for step, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print("epoch {} step {} loss {:.6f}".format(epoch, step, mean.item() / world_size))


def test(model, loader, rank):
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for data, target in loader:
            prediction = model(data).argmax(dim=1)
            counts += torch.tensor([(prediction == target).sum().item(), len(target)])
    dist.all_reduce(counts)
    if rank == 0:
        print("accuracy {}/{}".format(int(counts[0]), int(counts[1])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24, help="of all workers together")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    rank, world_size = setup()
    torch.manual_seed(7)
    train_set, test_set = Waveforms(120, 1), Waveforms(48, 2)
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True, seed=3)
    test_sampler = DistributedSampler(test_set, num_replicas=world_size, rank=rank, shuffle=False)
    per_worker = args.batch_size // world_size
    train_loader = DataLoader(train_set, batch_size=per_worker, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=per_worker, sampler=test_sampler)

    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(model, train_loader, optimizer, epoch, rank, world_size)
        test(model, test_loader, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
