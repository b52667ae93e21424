import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class DistributedScheduler:
    """Advances the schedule by as many batches as were processed by all workers."""

    def __init__(self, scheduler, num_processes):
        self.scheduler = scheduler
        self.num_processes = num_processes

    def step(self):
        for _ in range(self.num_processes):
            self.scheduler.step()

    def get_last_lr(self):
        return self.scheduler.get_last_lr()


def main():
    dist.init_process_group("gloo")
    world_size = int(os.environ["WORLD_SIZE"])
    is_main = int(os.environ["RANK"]) == 0
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(2024)
    features = torch.randn(96, 5)
    targets = features.prod(dim=1, keepdim=True).tanh()
    dataset = TensorDataset(features, targets)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 16))
    scheduler = DistributedScheduler(warmup, world_size)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            loss = loss.detach()
            dist.all_reduce(loss)
            if is_main:
                print("loss {:.10f} lr {:.3e}".format(loss.item() / world_size, scheduler.get_last_lr()[0]))
    dist.destroy_process_group()


main()
