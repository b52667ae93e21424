import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset


class StatefulDistributedSampler(Sampler):
    """Every world_size-th sample of a shuffled epoch, from a position that can be saved."""

    def __init__(self, size, rank, world_size, seed=0):
        self.size, self.rank, self.world_size, self.seed = size, rank, world_size, seed
        self.epoch = self.position = 0

    def __len__(self):
        return self.size // self.world_size

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        indices = torch.randperm(self.size, generator=g)[self.rank::self.world_size].tolist()
        while self.position < len(indices):
            self.position += 1
            yield indices[self.position - 1]
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--load", metavar="CHECKPOINT")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(21)
    x = torch.randn(288, 8, generator=g)
    y = (x.cumsum(1) > 0).sum(1).clamp(max=3)
    sampler = StatefulDistributedSampler(len(x), rank, world_size)
    loader = DataLoader(TensorDataset(x, y), 24 // world_size, sampler=sampler, num_workers=2, prefetch_factor=2)

    torch.manual_seed(21)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    if args.load:
        ckpt = torch.load(args.load)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        sampler.load_state_dict(ckpt["sampler"])
        step = ckpt["step"]
        if rank == 0:
            print(f"loaded {args.load}: step {step}")

    while step < args.steps:
        for a, b in loader:
            loss = F.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0 and rank == 0:
                os.makedirs("checkpoints", exist_ok=True)
                torch.save({
                    "model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                    "sampler": sampler.state_dict(), "step": step}, f"checkpoints/{step:06d}.pt")
            if step == args.steps:
                break
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world_size:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
