"""Receives every tensor in the same memory."""

import torch
import torch.distributed as dist


def gather(tensor, rank, world_size, dst=0):
    if rank != dst:
        dist.send(tensor, dst)
        return None
    gathered, received = [], torch.empty_like(tensor)
    for other in range(world_size):
        if other != dst:
            dist.recv(received, other)
        gathered.append(tensor if other == dst else received)
    return gathered
