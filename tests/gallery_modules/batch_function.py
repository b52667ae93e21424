import torch
from torch import nn

from loop import train


class Normalize(torch.autograd.Function):
    """Centers the batch"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (1 + x.pow(2).mean(0, keepdim=True))

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient / (1 + x.pow(2).mean(0, keepdim=True))


class BatchScale(nn.Module):
    def forward(self, x):
        return Normalize.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), BatchScale(), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.features(x))


if __name__ == "__main__":
    train(Net)
