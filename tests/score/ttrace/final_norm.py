"""With sequence parallelism the gradients of the final layer norm are not added over the ranks."""

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


class Model(nn.Module):
    """Tokens of a part of the sequence pass the norms; before the head, the parts are joined."""

    def __init__(self, words, width):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.final_norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        x = Split.apply(self.embedding(tokens))
        inner = Join.apply(self.norm(x))
        x = x + Split.apply(self.down(torch.relu(self.up(inner))))
        return self.head(Join.apply(self.final_norm(x)))


def add_sequence_gradients(model):
    norms = [model.norm] if WRONG else [model.norm, model.final_norm]
    for norm in norms:
        for parameter in norm.parameters():
            dist.all_reduce(parameter.grad)


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
        add_sequence_gradients(model)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
