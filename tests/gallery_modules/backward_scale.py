import torch
import torch.distributed as dist
from torch import nn

from loop import train


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / dist.get_world_size()


class Adapter(nn.Module):
    """Wants to average its gradient, which DDP does already"""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.proj(Scaled.apply(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.layers = nn.ModuleList([Adapter(), nn.Linear(16, 16)])
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


if __name__ == "__main__":
    train(Net)
