import torch
from torch import nn

from loop import train


class MoE(nn.Module):
    """Drops the tokens beyond the capacity of an expert, which is counted in the local batch"""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        gates = self.router(x).softmax(1)
        best = gates.argmax(1)
        capacity = 4
        out = x + 0 * gates.sum(1, keepdim=True)
        for e, expert in enumerate(self.experts):
            chosen = (best == e).nonzero()[:capacity, 0]
            out = out.index_add(0, chosen, gates[chosen, e, None] * expert(x[chosen]))
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.moe = MoE()
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.moe(torch.relu(self.inp(x))))


if __name__ == "__main__":
    train(Net)
