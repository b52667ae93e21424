"""Sharpness-aware minimization with accumulation: the first step perturbs by a gradient that was never averaged.

The gradients of the micro-batches are accumulated under `no_sync`, and the second pass has the last one only.
"""
import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
ACCUMULATION = 2


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, rho=0.05, **options):
        super().__init__(parameters, dict(rho=rho, **options))
        self.base = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad.norm() for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack(grads).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure):
        self.first_step()
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(192, 8)
    data = TensorDataset(x, (x[:, 0] > x[:, 1:4].amax(dim=1)).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = SAM(model.parameters(), lr=0.1, momentum=0.9)

    def backward(batches, synchronized):
        for i, (inputs, labels) in enumerate(batches):
            last = i + 1 == len(batches)
            with contextlib.nullcontext() if synchronized and last else model.no_sync():
                loss = F.cross_entropy(model(inputs), labels) / ACCUMULATION
                loss.backward()
        return loss

    for epoch in range(4):
        sampler.set_epoch(epoch)
        window = []
        for batch in loader:
            window.append(batch)
            if len(window) == ACCUMULATION:
                backward(window, synchronized=not WRONG)
                again = window[-1:] if WRONG else window
                optimizer.step(lambda batches=again: backward(batches, synchronized=True))
                window = []
        if rank == 0:
            print(f"epoch {epoch} done")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
