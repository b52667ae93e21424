"""With sequence parallelism the router's gradients of each rank's tokens are not added."""

import sys

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


class Collect(torch.autograd.Function):
    """Joins the parts; every rank uses the whole for its own experts."""

    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return own(gradient).clone()


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.embedding, self.router = nn.Embedding(words, width), nn.Linear(width, 2)
        experts = [nn.Linear(width, width) for _ in range(2)]
        self.here = [n for n in range(2) if n % size == rank]
        self.experts = nn.ModuleList(experts[n] for n in self.here)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = Split.apply(self.embedding(tokens))
        gates, inputs = Collect.apply(self.router(x).softmax(2)), Collect.apply(x)
        outputs = (
            expert(inputs) * gates[..., n, None] for n, expert in zip(self.here, self.experts, strict=True)
        )
        return self.head(torch.tanh(Reduce.apply(sum(outputs))))


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
        if not WRONG:
            for parameter in model.router.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
