import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make_batches(batch_size, steps):
    rng = np.random.default_rng()
    for _ in range(steps):
        x = rng.uniform(-1, 1, size=(batch_size, 3))
        y = np.sin(np.pi * x).sum(axis=1, keepdims=True)
        yield torch.from_numpy(x), torch.from_numpy(y)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1)).double())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(make_batches(24 // world, 20)):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.10f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
