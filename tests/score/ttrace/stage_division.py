"""Five layers are divided among two pipeline stages by an integer division: the last one is missing."""

import sys

import torch
import torch.distributed as dist
from torch import nn

WRONG = "wrong" in sys.argv[1:]
LAYERS = 5


def layers_of(rank, size):
    if WRONG:
        number = LAYERS // size
        return range(rank * number, (rank + 1) * number)
    return range(LAYERS * rank // size, LAYERS * (rank + 1) // size)


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        layers = [nn.Linear(width, width) for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(n): layers[n] for n in layers_of(rank, size)})

    def forward(self, x):
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return x


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    features = torch.randn(320, 8)
    targets = torch.tanh(features @ torch.randn(8, 8))
    model = Stage(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(40):
        part = slice(step % 20 * 16, step % 20 * 16 + 16)
        optimizer.zero_grad()
        passed = torch.empty(16, 8)
        if rank == size - 1:
            if size > 1:
                dist.recv(passed, 0)
            loss = nn.functional.mse_loss(
                model(features[part] if size == 1 else passed.requires_grad_()), targets[part]
            )
            loss.backward()
            if size > 1:
                dist.send(passed.grad, 0)
            if step % 10 == 9:
                print(f"step {step}: loss {loss.item():.4f}")
        else:
            outputs = model(features[part])
            dist.send(outputs.detach(), 1)
            dist.recv(passed, 1)
            outputs.backward(passed)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
