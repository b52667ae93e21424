"""Sends to rank + 1 without a modulo, so that the last rank has no successor."""

from typing import Literal

import torch
import torch.distributed as dist


def ring_all_reduce(tensor, rank, world_size, op: Literal["sum", "mean"] = "sum"):
    parts = list(torch.tensor_split(tensor.view(-1), world_size))
    for step in range(world_size - 1):
        buffer = torch.empty_like(parts[(rank - step - 1) % world_size])
        request = dist.isend(parts[(rank - step) % world_size], rank + 1)
        dist.recv(buffer, rank - 1)
        request.wait()
        parts[(rank - step - 1) % world_size] += buffer
