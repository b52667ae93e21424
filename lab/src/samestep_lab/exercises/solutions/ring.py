"""Exercise: sum or average a tensor over all ranks in a ring, in which each rank sends to the next one."""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor, rank: int, world_size: int, op: Literal["sum", "mean"] = "sum") -> None:
    """Write the sum or the mean over all ranks to `tensor` on every rank.

    Each rank sends 2 (N - 1) / N times the tensor on N ranks, always to the rank after it.
    """
    # >>> Split the tensor into N parts. In N - 1 steps each rank sends a part to the next rank, which adds it
    # >>> to its own: then each rank has the sum of one part. In N - 1 further steps these parts go around.
    # | raise NotImplementedError
    parts = list(torch.tensor_split(tensor.view(-1), world_size))
    after, before = (rank + 1) % world_size, (rank - 1) % world_size

    def pass_on(sent: int, received: int) -> Tensor:
        """Send one part to the next rank, and return the part that the rank before sends."""
        buffer = torch.empty_like(parts[received % world_size])
        request = dist.isend(parts[sent % world_size], dst=after)  # both at once: no rank waits for the other
        dist.recv(buffer, src=before)
        request.wait()
        return buffer

    for step in range(world_size - 1):
        received = (rank - step - 1) % world_size
        parts[received] += pass_on(rank - step, received)
    if op == "mean":
        parts[(rank + 1) % world_size] /= world_size
    for step in range(world_size - 1):
        received = (rank - step) % world_size
        parts[received].copy_(pass_on(rank + 1 - step, received))
    # <<<
