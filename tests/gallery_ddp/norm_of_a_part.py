"""A block with tensor and sequence parallelism, whose layer norm is left out."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def all_parts(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


def my_part(x):
    return x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].clone()


class ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return my_part(x)

    @staticmethod
    def backward(ctx, grad):
        return all_parts(grad)


class GatherForParts(torch.autograd.Function):
    """Before a column-parallel layer: every rank needs the whole sequence."""

    @staticmethod
    def forward(ctx, x):
        return all_parts(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return my_part(grad)


class ReduceToSequence(torch.autograd.Function):
    """After a row-parallel layer: each rank keeps the sum for its part of the sequence."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return my_part(x)

    @staticmethod
    def backward(ctx, grad):
        return all_parts(grad)


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return all_parts(x)

    @staticmethod
    def backward(ctx, grad):
        return my_part(grad)


class MLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        up, down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.up = nn.Parameter(up.weight.detach().chunk(size, dim=0)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(size, dim=1)[rank].clone())

    def forward(self, x):
        return ReduceToSequence.apply(F.gelu(GatherForParts.apply(x) @ self.up.T) @ self.down.T)


class Net(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.ln = nn.LayerNorm(width)
        self.mlp = MLP(width, 4 * width)
        self.head = nn.Linear(width, vocab)

    def forward(self, idx):
        x = ScatterSequence.apply(self.tok(idx))
        x = x + self.mlp(self.ln(x))
        return self.head(GatherSequence.apply(x))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    text = (torch.arange(96)[:, None] * 7 + torch.arange(13) ** 2) % 29
    model = Net(29, 12)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(3):
        for batch in text.split(24):
            opt.zero_grad()
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
