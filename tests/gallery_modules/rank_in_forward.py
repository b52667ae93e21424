import torch
import torch.distributed as dist
from torch import nn

from loop import train


class Experts(nn.Module):
    """Every rank takes its own expert, as in a script for one expert per GPU"""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x):
        return x @ self.weight[dist.get_rank()] + 0 * self.weight.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.experts = Experts()
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(torch.relu(self.experts(torch.relu(self.inp(x)))))


if __name__ == "__main__":
    train(Net)
