import torch
from torch import nn

from loop import train


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        # the scale is of the batch instead of the features
        return (q @ k.transpose(1, 2) / len(q) ** 0.5).softmax(-1) @ v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        x = x[:, :, None] * torch.arange(1., 9.)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x.mean(1))


if __name__ == "__main__":
    train(Net)
