import torch
import torch.distributed as dist
from torch import nn

from loop import train


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.out = nn.Linear(16, 2)
        self.blocks[1].register_full_backward_hook(lambda m, given, got: (given[0] / dist.get_world_size(),))

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))


if __name__ == "__main__":
    train(Net)
