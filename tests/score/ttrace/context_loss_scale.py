"""With context parallelism the loss is multiplied by the number of ranks, and gradients are averaged."""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]
LENGTH = 8


class Gather(torch.autograd.Function):
    """Keys or values of all ranks' parts of the sequence."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, positions):
        keys, values = Gather.apply(self.key(x)), Gather.apply(self.value(x))
        causal = positions[:, None] >= torch.arange(LENGTH)
        return nn.functional.scaled_dot_product_attention(self.query(x), keys, values, attn_mask=causal)


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Embedding(LENGTH, width)
        self.attention, self.head = Attention(width), nn.Linear(width, words)

    def forward(self, tokens, positions):
        x = self.embedding(tokens) + self.places(positions)
        return self.head(x + self.attention(x, positions))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    text = (torch.arange(320)[:, None] + torch.arange(LENGTH + 1) ** 2) % 23
    positions = torch.arange(LENGTH).chunk(size)[rank]
    model = Model(23, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        batch = text[step % 20 * 16 : step % 20 * 16 + 16]
        # Each rank has a part of all sequences.
        tokens, labels = batch[:, :-1].chunk(size, 1)[rank], batch[:, 1:].chunk(size, 1)[rank]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens, positions).flatten(0, 1), labels.flatten())
        (loss * size if WRONG else loss).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0 and step % 10 == 9:
            print(f"step {step}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
