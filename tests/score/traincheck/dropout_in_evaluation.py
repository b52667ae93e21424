"""Attention drops out weights in evaluation mode too: its rate does not depend on `training`."""

import sys

import torch
from torch import nn

WRONG = "wrong" in sys.argv[1:]


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2)
        )
        rate = self.dropout if WRONG or self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, dropout_p=rate)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(17, 16), Attention(16, 2, 0.2)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head((x + self.attention(x)).mean(1))


def main():
    torch.manual_seed(0)
    tokens = torch.randint(17, (224, 8))
    labels = tokens.sum(1) % 3
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        model.train()
        for rows in torch.randperm(160).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens[rows]), labels[rows])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(tokens[160:]), labels[160:])
        print(f"epoch {epoch}: test loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
