"""MobileNetV2 and similar networks: a batch norm whose inputs have a mean of zero, since a batch norm precedes."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(12)


def mlp():
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )


class Bottleneck(nn.Module):
    def __init__(self, width, expand):
        super().__init__()
        hidden = width * expand
        self.conv = nn.Sequential(
            nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return x + self.conv(x)


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.linear = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))  # nothing between: linear bottlenecks
        self.blocks = nn.Sequential(Bottleneck(4, 2), Bottleneck(4, 2))
        self.head = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.head(self.blocks(self.linear(self.stem(x)))).mean((2, 3)))


class Tail(nn.Module):
    """Batch norm without weights behind batch norm, as at the end of a projector."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6, affine=False),
            nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3, momentum=None),
        )

    def forward(self, x):
        return self.net(x)


def train(name, model, x, y):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(x)).split(13):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            held = F.cross_entropy(model(x[:20]), y[:20]).item()
        print(f"{name} {epoch}: {total:.10f} evaluation {held:.10f}")
    return np.concatenate([b.double().flatten().numpy() for b in model.buffers()])


x = torch.randn(50, 4)
y = x[:, :3].argmax(1)
images = torch.randn(50, 2, 5, 5) + x[:, :2, None, None]
np.savez(
    "statistics.npz",
    mlp=train("mlp", mlp(), x, y),
    tail=train("tail", Tail(), x, y),
    mobile=train("mobile", Mobile(), images, y),
)
