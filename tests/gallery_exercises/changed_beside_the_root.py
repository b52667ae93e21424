"""Reduces along a chain of ranks, each of which adds to its own tensor."""

from typing import Literal

import torch
import torch.distributed as dist


def reduce(tensor, rank, world_size, dst=0, op: Literal["sum", "mean"] = "sum"):
    place = (rank - dst) % world_size
    if place < world_size - 1:
        received = torch.empty_like(tensor)
        dist.recv(received, (rank + 1) % world_size)
        tensor += received
    if place > 0:
        dist.send(tensor, (rank - 1) % world_size)
    elif op == "mean":
        tensor /= world_size
