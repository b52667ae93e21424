"""Ranks that send each other messages: down a line one after another, and round a ring all at once.

Run it with ``samestep run -n 4 examples/message_passing.py``; under srun, mpirun or torchrun the launcher's
tasks are the ranks: ``mpirun -np 4 python examples/message_passing.py``.
"""

import torch

import samestep


def down_the_line(world: samestep.World) -> torch.Tensor:
    """Return the sum of 1 .. size: each rank adds its number to what comes from the left, and sends it on."""
    rank, last = world.place.rank, world.place.size - 1
    total = torch.zeros(1, device=world.device)
    if rank > 0:
        world.recv(total, src=rank - 1)
    total += rank + 1
    if rank < last:
        world.send(total, dst=rank + 1)
    world.broadcast(total, src=last)
    return total


def round_the_ring(world: samestep.World) -> torch.Tensor:
    """Return the sum of 1 .. size: each rank's number goes round, and all ranks send and receive at once."""
    rank, size = world.place.rank, world.place.size
    passing = torch.full((1,), rank + 1.0, device=world.device)
    total, coming = passing.clone(), torch.empty_like(passing)
    for _ in range(size - 1):
        pending = world.exchange(passing, coming, dst=(rank + 1) % size, src=(rank - 1) % size)
        pending.wait()  # only now may both tensors be touched
        passing, coming = coming, passing
        total += passing
    return total


def main() -> None:
    with samestep.join() as world:
        line, ring = down_the_line(world).item(), round_the_ring(world).item()
        told = world.all_gather_objects((line, ring))
        world.print(f"{world.place.size} ranks: down the line {line:g}, round the ring {ring:g}")
        world.print(f"all of them know it: {told == [(line, ring)] * world.place.size}")


if __name__ == "__main__":
    main()
