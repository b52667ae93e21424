"""Not a fault: Adam with a learning rate of 0.1 amplifies rounding, so runs that are right end with other weights."""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
STEPS = 20


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)])
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(8 * STEPS, 3, 16, 16), torch.randint(10, (8 * STEPS,)))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=8 // size, sampler=sampler)
    blocks = [Block(3, 16, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)]
    model = DDP(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 if WRONG else 1e-3, weight_decay=1e-4)
    for step, (images, labels) in enumerate(loader):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shown = loss.detach() / size
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step}: loss {shown.item():.4f}, gradient {norm.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
