import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 5, padding=2)
        self.fc = nn.Linear(8 * 6, 3)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.conv(x[:, None])), 4)
        return self.fc(x.flatten(1))


def main(args):
    dist.init_process_group("gloo", init_method="env://")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(args.seed)
    waves = torch.linspace(0, 12, 24)
    labels = torch.arange(96) % 3
    signals = torch.sin(waves * (labels[:, None] + 1)) + 0.4 * torch.randn(96, 24)
    dataset = TensorDataset(signals, labels)
    sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)
    loader = DataLoader(dataset, batch_size=args.batch_size // size, sampler=sampler)
    model = DDP(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.wd * size)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            average = loss.detach() / size
            dist.all_reduce(average)
            if rank == 0:
                print("Train Epoch: {} Loss: {:.10f}".format(epoch, average.item()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--wd", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    main(parser.parse_args())
