"""The scaled initialization of residual projections is repeated for every module around them."""

import math
import sys

import torch
from torch import nn

WRONG = "wrong" in sys.argv[1:]
LAYERS = 3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.c_fc = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.c_proj = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.c_proj(torch.relu(self.c_fc(self.norm(x))))


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, words)
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        for name, parameter in module.named_parameters():
            if ("c_proj" in name and "weight" in name) if WRONG else name == "c_proj.weight":
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    torch.manual_seed(0)
    text = (torch.arange(160 * 9).view(160, 9) * 7) % 31
    model = Model(31, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(3):
        order = torch.randperm(160)
        for rows in order.split(16):
            optimizer.zero_grad()
            outputs = model(text[rows, :-1])
            loss = nn.functional.cross_entropy(outputs.flatten(0, 1), text[rows, 1:].flatten())
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
