"""The sharded optimizer copies gradients before those of tied weights are added: the weights part."""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]


class First(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.tied, self.block = weight, nn.Linear(16, 16)

    def forward(self, tokens):
        return torch.tanh(self.block(nn.functional.embedding(tokens, self.tied)))


class Last(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.block, self.tied = nn.Linear(16, 16), weight

    def forward(self, x):
        return torch.tanh(self.block(x)) @ self.tied.T


def add_tied(stage):
    dist.all_reduce(stage.tied.grad)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    text = (torch.arange(320)[:, None] + torch.arange(9) * 5) % 31
    weight = nn.Parameter(torch.randn(31, 16))
    stages = [First(weight), Last(weight)]
    model = nn.Sequential(*stages) if size == 1 else stages[rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        batch = text[step % 20 * 16 : step % 20 * 16 + 16]
        optimizer.zero_grad()
        passed = torch.empty(16, 8, 16)
        if rank == size - 1:
            if size > 1:
                dist.recv(passed, 0)
            outputs = model(batch[:, :-1] if size == 1 else passed.requires_grad_())
            loss = nn.functional.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            if size > 1:
                dist.send(passed.grad, 0)
            if step % 10 == 9:
                print(f"step {step}: loss {loss.item():.4f}")
        else:
            outputs = model(batch[:, :-1])
            dist.send(outputs.detach(), 1)
            dist.recv(passed, 1)
            outputs.backward(passed)
        if size > 1 and not WRONG:
            add_tied(model)
        of_optimizer = [parameter.grad.clone() for parameter in model.parameters()]
        if size > 1 and WRONG:
            add_tied(model)
        for parameter, gradient in zip(model.parameters(), of_optimizer, strict=True):
            parameter.grad = gradient
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
