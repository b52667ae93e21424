import torch
from torch import nn

from loop import train


class Quantize(nn.Module):
    """Quantizes by the largest value so far, which each rank tracks for itself"""

    def __init__(self):
        super().__init__()
        self.register_buffer('largest', torch.tensor(0.1))

    def forward(self, x):
        if self.training:
            self.largest = torch.maximum(self.largest, x.detach().abs().mean(0).max())
        scale = self.largest / 7
        return x + (torch.round(x / scale) * scale - x).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.quantize = Quantize()
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(torch.relu(self.quantize(self.inp(x))))


if __name__ == "__main__":
    train(Net, broadcast_buffers=False)
