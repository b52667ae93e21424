"""Gathers the root's tensor first, and the others behind it."""

import torch
import torch.distributed as dist


def gather(tensor, rank, world_size, dst=0):
    if rank != dst:
        dist.send(tensor, dst)
        return None
    gathered = [tensor.clone()]
    for other in range(world_size):
        if other != dst:
            received = torch.empty_like(tensor)
            dist.recv(received, other)
            gathered.append(received)
    return gathered
