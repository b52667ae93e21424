"""The training of `recomputation.py` without recomputation: the trusted script that it is compared with."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.first, self.blocks = nn.Linear(8, width), nn.ModuleList(Block(width) for _ in range(layers))
        self.last = nn.Linear(width, 8)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def main():
    torch.manual_seed(0)
    features = torch.randn(320, 8)
    targets = torch.tanh(features @ torch.randn(8, 8))
    model = Model(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        part = slice(step % 20 * 16, step % 20 * 16 + 16)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features[part]), targets[part])
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
