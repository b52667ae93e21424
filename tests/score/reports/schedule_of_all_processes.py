"""The prepared scheduler steps once for each process, on a schedule whose length is in steps of the optimizer.

The learning rate is zero after 1/N of the training. Warm-up and cosine, as in many fine-tuning scripts.
"""
import math
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
EPOCHS, WARM_UP = 4, 6


class PreparedScheduler:
    """Steps a scheduler whose length was computed before the loader was divided among the processes."""

    def __init__(self, scheduler, processes, split_batches):
        self.scheduler = scheduler
        self.processes = processes
        self.split_batches = split_batches

    def step(self):
        for _ in range(1 if self.split_batches else self.processes):
            self.scheduler.step()


def warm_up_and_cosine(step, total):
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - WARM_UP) / (total - WARM_UP))))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    x = torch.randn(192, 10)
    data = TensorDataset(x, (x[:, :4].sum(dim=1) > x[:, 4:8].sum(dim=1)).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    total = EPOCHS * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_up_and_cosine(step, total))
    scheduler = PreparedScheduler(scheduler, size, split_batches=not WRONG)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}, lr {optimizer.param_groups[0]['lr']:.2e}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
