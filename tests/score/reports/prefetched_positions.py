"""The saved position of each rank counts the batches that were prefetched, not those that were trained on.

The prefetching thread of each rank is at another batch, so a resumed run leaves out other samples on each rank.
"""
import os
import queue
import sys
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WRONG = "wrong" in sys.argv[1:]
STEPS, BATCH = 24, 16


class Prefetcher:
    """Makes the batches of a stream on a thread, up to 4 in advance"""

    def __init__(self, rank, size, first):
        self.rank, self.size = rank, size
        self.fetched = self.used = first
        self.queue = queue.Queue(maxsize=4)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        while self.fetched < STEPS:
            generator = torch.Generator().manual_seed(self.fetched)
            x = torch.randn(BATCH, 12, generator=generator)
            y = x[:, :3].sum(dim=1, keepdim=True).tanh()
            self.queue.put((x[self.rank :: self.size], y[self.rank :: self.size]))
            self.fetched += 1

    def next(self):
        batch = self.queue.get()
        self.used += 1
        return batch

    def position(self):
        return self.fetched if WRONG else self.used


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    done, first = 0, 0
    if os.path.exists("checkpoint.pt"):
        state = torch.load("checkpoint.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, first = state["steps"], state["positions"][rank]
    loader = Prefetcher(rank, size, first)
    for step in range(done, STEPS):
        if loader.used >= STEPS:
            break
        x, y = loader.next()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 8 == 0:
            positions = [None] * size
            dist.all_gather_object(positions, loader.position())
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "steps": step + 1, "positions": positions}, "checkpoint.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
