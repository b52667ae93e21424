"""Activation recomputation gives all layers of a group the input of the first one."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WRONG = "wrong" in sys.argv[1:]
GROUP = 2


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
        for begin in range(0, len(self.blocks), GROUP):
            x = checkpoint(self.group, begin, x, use_reentrant=False)
        return self.last(x)

    def group(self, begin, hidden):
        x = hidden
        for block in self.blocks[begin : begin + GROUP]:
            x = block(hidden if WRONG else x)
        return x


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
