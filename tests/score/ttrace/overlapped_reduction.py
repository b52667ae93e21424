"""A tensor-parallel layer overlaps the sum of its input's gradient, and uses it before the sum."""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]


class ColumnParallel(torch.autograd.Function):
    """A matrix product whose columns are divided among the ranks."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        partial = gradient @ weight
        summed = partial.clone()
        work = dist.all_reduce(summed, async_op=True)
        of_weight = gradient.T @ x
        work.wait()
        return partial if WRONG else summed, of_weight


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        up, down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Parameter(up.weight.detach().chunk(size, 0)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(size, 1)[rank].clone())

    def forward(self, x):
        hidden = torch.relu(ColumnParallel.apply(self.norm(x), self.up))
        return x + Reduce.apply(hidden @ self.down.T)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(320, 16)
    targets = torch.tanh(features @ torch.randn(16, 16))
    model = nn.Sequential(nn.Linear(16, 16), Block(16, 32), Block(16, 32), nn.Linear(16, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        part = slice(step % 20 * 16, step % 20 * 16 + 16)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features[part]), targets[part])
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
