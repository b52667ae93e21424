"""A rank raises an exception, and its process does not end: a thread of it still waits, and so do all other ranks."""
import queue
import sys
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WRONG = "wrong" in sys.argv[1:]
STEPS = 12


class Prefetcher:
    """Makes batches on a thread, in advance; `None` ends the thread"""

    def __init__(self, rank):
        self.rank = rank
        self.requests, self.batches = queue.Queue(), queue.Queue()
        self.thread = threading.Thread(target=self.make_batches)
        self.thread.start()

    def make_batches(self):
        while (step := self.requests.get()) is not None:
            generator = torch.Generator().manual_seed(100 * self.rank + step)
            x = torch.randn(8, 10, generator=generator)
            self.batches.put((x, x.prod(dim=1, keepdim=True).tanh()))

    def batch(self, step):
        self.requests.put(step)
        return self.batches.get()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prefetcher = Prefetcher(rank)
    for step in range(STEPS):
        x, y = prefetcher.batch(step)
        if WRONG and rank == size - 1 and step == 6:
            raise ValueError(f"step {step}: the sample has no image")
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    prefetcher.requests.put(None)
    if rank == 0:
        print(f"{STEPS} steps, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
