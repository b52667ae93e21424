"""Broadcasts rank 0's tensor, and adds no other one."""

from typing import Literal

import torch.distributed as dist


def all_reduce(tensor, rank, world_size, op: Literal["sum"] = "sum"):
    if rank > 0:
        dist.recv(tensor, 0)
    else:
        for other in range(1, world_size):
            dist.send(tensor, other)
