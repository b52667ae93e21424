import torch
from torch import nn

from loop import train


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        x = x - x.mean(0)
        return torch.relu(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))


if __name__ == "__main__":
    train(Net)
