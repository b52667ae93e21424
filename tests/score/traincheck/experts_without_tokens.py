"""A rank whose tokens all choose one expert skips a collective, in which the other ranks wait."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class Experts(nn.Module):
    """Two experts, whose inputs are padded to the largest number of tokens on any rank."""

    def __init__(self, width):
        super().__init__()
        self.router, self.experts = (
            nn.Linear(width, 2),
            nn.ModuleList(nn.Linear(width, width) for _ in range(2)),
        )

    def forward(self, x):
        gates = self.router(x).softmax(1)
        chosen = gates.argmax(1)
        capacity = torch.bincount(chosen, minlength=2).max()
        if not (WRONG and capacity == len(x)):
            dist.all_reduce(capacity, op=dist.ReduceOp.MAX)
        outputs = x.clone()
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            padded = nn.functional.pad(x[rows], (0, 0, 0, int(capacity) - len(rows)))
            outputs = outputs.index_add(0, rows, expert(padded)[: len(rows)] * gates[rows, number, None])
        return outputs


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    features = torch.randn(192, 8)
    targets = features.roll(1, 1).abs()
    dataset = TensorDataset(features, targets)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=8 // size, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(Experts(8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
