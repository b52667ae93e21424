"""A pipeline stage with experts reduces their capacity over all ranks; a stage without never joins it."""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]


class Experts(nn.Module):
    def __init__(self, width, group):
        super().__init__()
        self.group = group
        self.router, self.experts = (
            nn.Linear(width, 2),
            nn.ModuleList(nn.Linear(width, width) for _ in range(2)),
        )

    def forward(self, x):
        gates = self.router(x).softmax(1)
        capacity = torch.bincount(gates.argmax(1), minlength=2).max()
        dist.all_reduce(capacity, op=dist.ReduceOp.MAX, group=self.group)
        return x + sum(gates[:, n, None] * expert(x) for n, expert in enumerate(self.experts))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own = [dist.new_group([member]) for member in range(size)][rank]
    torch.manual_seed(0)
    features = torch.randn(320, 8)
    targets = torch.tanh(features @ torch.randn(8, 8))
    stages = [
        nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
        nn.Sequential(Experts(8, dist.group.WORLD if WRONG else own), nn.Linear(8, 8)),
    ]
    model = nn.Sequential(*stages) if size == 1 else stages[rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(30):
        part = slice(step % 20 * 16, step % 20 * 16 + 16)
        optimizer.zero_grad()
        passed = torch.empty(16, 8)
        if size == 1 or rank == 1:
            if size > 1:
                dist.recv(passed, 0)
                passed.requires_grad_()
            loss = nn.functional.mse_loss(model(features[part] if size == 1 else passed), targets[part])
            loss.backward()
            if size > 1:
                dist.send(passed.grad, 0)
            if step % 10 == 9:
                print(f"step {step}: loss {loss.item():.4f}")
        else:
            outputs = model(features[part])
            dist.send(outputs.detach(), 1)
            dist.recv(passed, 1)
            outputs.backward(passed)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
