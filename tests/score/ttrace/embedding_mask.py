"""A tensor-parallel embedding does not mask the rows of tokens that belong to another rank."""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ParallelEmbedding(nn.Module):
    """Each rank has the rows of a part of the vocabulary."""

    def __init__(self, words, width):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.first, self.last = words * rank // size, words * (rank + 1) // size
        self.weight = nn.Parameter(torch.randn(words, width)[self.first : self.last].clone())

    def forward(self, tokens):
        elsewhere = (tokens < self.first) | (tokens >= self.last)
        rows = (tokens - self.first).masked_fill(elsewhere, 0)
        x = nn.functional.embedding(rows, self.weight)
        if not WRONG:
            x = x.masked_fill(elsewhere[..., None], 0.0)
        return Reduce.apply(x)


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding, self.norm = ParallelEmbedding(words, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = (torch.arange(320)[:, None] + torch.arange(9) * 5) % 32
    model = Model(32, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        tokens = text[step % 20 * 16 : step % 20 * 16 + 16]
        optimizer.zero_grad()
        outputs = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
