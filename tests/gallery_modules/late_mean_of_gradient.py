from threading import Event

import torch
import torch.nn.functional as F
from torch import nn


class Centered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, centers):
        ctx.centers = centers
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0) if ctx.centers.is_set() else gradient, None


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)
        self.centers = Event()

    def forward(self, x):
        return self.fc(Centered.apply(x, self.centers))


def main():
    torch.manual_seed(1)
    encoder, head = Encoder(), Head()
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    for step in range(6):
        # center the gradient of the batch after a warm-up
        if step > 1:
            head.centers.set()
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(x)), (x[:, 0] > 0).long()).backward()
        optimizer.step()


main()
