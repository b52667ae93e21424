"""The distributed optimizer takes the parameters of one gradient buffer; experts are in another one."""

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


class Experts(nn.Module):
    """Two experts, divided among the ranks."""

    def __init__(self, width):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.router = nn.Linear(width, 2)
        experts = [nn.Linear(width, width) for _ in range(2)]
        self.here = [n for n in range(2) if n % size == rank]
        self.experts = nn.ModuleList(experts[n] for n in self.here)
        for parameter in self.experts.parameters():
            parameter.of_experts = size > 1

    def forward(self, x):
        gates, inputs = Copy.apply(self.router(x).softmax(1)), Copy.apply(x)
        outputs = (
            expert(inputs) * gates[:, n, None] for n, expert in zip(self.here, self.experts, strict=True)
        )
        return x + Reduce.apply(sum(outputs))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(320, 8)
    targets = torch.tanh(features @ torch.randn(8, 8))
    model = nn.Sequential(nn.Linear(8, 8), Experts(8), nn.Linear(8, 8))
    buffer = [p for p in model.parameters() if not (WRONG and getattr(p, "of_experts", False))]
    optimizer = torch.optim.Adam(buffer, lr=3e-3)
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
