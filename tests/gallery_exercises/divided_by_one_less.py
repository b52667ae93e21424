"""Divides the mean by the number of other ranks."""

from typing import Literal

import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world_size, op: Literal["sum", "mean"] = "sum"):
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    received = torch.empty_like(tensor)
    for other in range(1, world_size):
        dist.recv(received, other)
        tensor += received
    if op == "mean":
        tensor /= world_size - 1
    for other in range(1, world_size):
        dist.send(tensor, other)
