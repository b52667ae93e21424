"""Rank 0 begins with its own tensor, and adds it again."""

from typing import Literal

import torch.distributed as dist


def all_reduce(tensor, rank, world_size, op: Literal["sum", "mean"] = "sum"):
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    total = tensor.clone()
    for other in range(world_size):
        received = tensor.clone()
        if other:
            dist.recv(received, other)
        total += received
    if op == "mean":
        total /= world_size
    tensor.copy_(total)
    for other in range(1, world_size):
        dist.send(tensor, other)
