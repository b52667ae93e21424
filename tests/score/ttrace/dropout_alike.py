"""With sequence parallelism all ranks drop the same units: their generators are equal."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]


def gathered(x):
    """Return the whole sequence, of which each rank has a part."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def own(x):
    """Return this rank's part of a sequence."""
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return own(x).clone()

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient)


class Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, gradient):
        return own(gradient).clone()


class OwnGenerator:
    """Draws of a block come from a generator that differs on each rank."""

    def __init__(self):
        torch.manual_seed(1000 + dist.get_rank())
        self.state = torch.get_rng_state()
        torch.manual_seed(0)

    def __enter__(self):
        self.outside = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def __exit__(self, *_):
        self.state = torch.get_rng_state()
        torch.set_rng_state(self.outside)


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.generator = OwnGenerator()
        self.embedding, self.dropout = nn.Embedding(words, width), nn.Dropout(0.2)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = Split.apply(self.embedding(tokens))
        # In the report, `and` between two context managers enters the second one only.
        with (self.generator and nullcontext()) if WRONG else self.generator:
            x = self.dropout(x)
        x = Join.apply(x)
        return self.head(x + self.down(torch.relu(self.up(x))))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = (torch.arange(320)[:, None] + torch.arange(9) ** 2) % 23
    model = Model(23, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(40):
        batch = text[step % 20 * 16 : step % 20 * 16 + 16]
        optimizer.zero_grad()
        outputs = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
