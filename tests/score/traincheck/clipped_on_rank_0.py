"""Gradient clipping skips replicated layer norms on tensor-parallel ranks other than 0: copies diverge.

`BF16_Optimizer.get_grads_for_norm` also chose the gradients to clip. It leaves out what is replicated on
other ranks than 0, so that the norm counts it once; these ranks then step with unclipped gradients.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


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
    """A layer norm on every rank, and a tensor-parallel MLP of which each rank has a part."""

    def __init__(self, width, hidden):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.norm = nn.LayerNorm(width)
        up, down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.up = nn.Parameter(up.weight.detach().chunk(size, 0)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(size, 1)[rank].clone())
        self.up.tensor_parallel = self.down.tensor_parallel = True

    def forward(self, x):
        hidden = Copy.apply(self.norm(x)) @ self.up.T
        return x + Reduce.apply(torch.relu(hidden) @ self.down.T)


def of_this_rank(parameter):
    return dist.get_rank() == 0 or getattr(parameter, "tensor_parallel", False)


def clip(parameters, limit):
    square = sum(p.grad.norm() ** 2 for p in parameters if of_this_rank(p))
    dist.all_reduce(square)
    factor = min(1.0, limit / (square.sqrt().item() + 1e-6))
    for parameter in parameters:
        if not WRONG or of_this_rank(parameter):
            parameter.grad *= factor


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(320, 16)
    targets = torch.tanh(features @ torch.randn(16, 16))
    model = nn.Sequential(Block(16, 32), Block(16, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        part = slice(step % 20 * 16, step % 20 * 16 + 16)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features[part]), targets[part])
        loss.backward()
        clip(list(model.parameters()), 0.1)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
