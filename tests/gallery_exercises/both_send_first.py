"""Every rank sends before it receives."""

import torch
import torch.distributed as dist


def all_reduce(tensor, rank, world_size, op="sum"):
    own, received = tensor.clone(), torch.empty_like(tensor)
    for other in range(world_size):
        if other != rank:
            dist.send(own, other)
            dist.recv(received, other)
            tensor += received
