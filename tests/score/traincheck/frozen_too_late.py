"""Stages that the configuration freezes are trained: only `train()` freezes them, and is not called."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class Backbone(nn.Module):
    def __init__(self, frozen_stages):
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.ReLU()) for _ in range(3))
        if not WRONG:
            self.freeze_stages()

    def freeze_stages(self):
        for stage in self.stages[: self.frozen_stages]:
            stage.eval()
            stage.requires_grad_(requires_grad=False)

    def train(self, mode=True):
        super().train(mode)
        self.freeze_stages()
        return self

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x


def main():
    torch.manual_seed(0)
    features = torch.randn(256, 12)
    labels = (features @ torch.randn(12, 4)).argmax(1)
    loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(Backbone(frozen_stages=2), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
