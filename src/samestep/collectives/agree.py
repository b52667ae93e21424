"""Ranks that are not in one collective find out before the first byte of a tensor moves.

Ranks of `on_one_host` read in their memory what the others call: one handover, and no message. Others say it
in a line, and pass on what they have heard; after round k each knows of 2^(k+1) ranks::

    round 0    0 > 1 > 2 > 3 > 4 > 0     each hears of 1 other
    round 1    0 > 2 > 4 > 1 > 3 > 0     of 3
    round 2    0 > 4 > 3 > 2 > 1 > 0     of all

That costs ceil(log2 N) steps of `MESSAGE` bytes, all ranks at once, so that no rank is left waiting when
another refuses.

Source: D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization, 1988 (the dissemination
barrier).
"""

import functools

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.collectives.line import LINE, alike, line, told_apart
from samestep.collectives.one_host import OneHostWorld
from samestep.collectives.walk import may_begin_early
from samestep.world.world import World

MESSAGE = 2 * LINE
"""Bytes of a message: what a rank calls, and what another does that calls something else."""


def agree(world: World, call: str, tensor: Tensor) -> None:
    """Return if all ranks make the same call.

    Args:
        world: the ranks; all of them call this.
        call: the collective, its algorithm and its arguments.
        tensor: what it is called with.

    Raises:
        OutOfStep: they do not; on all ranks, and with two of the calls.
    """
    if isinstance(world, OneHostWorld):
        world.agree(call, tensor)
        return
    rank, size = world.place.rank, world.place.size
    known = line(rank, call, tensor) + bytes(LINE)
    heard = torch.empty(steps(size), MESSAGE, dtype=torch.uint8, device=world.device)
    rounds = [
        ((rank + distance) % size, (rank - distance) % size, heard[number])
        for number, distance in enumerate(_distances(size))
    ]
    early = may_begin_early(heard)
    coming = [world.exchange(None, room, source=source) for _, source, room in rounds if early]
    leaving = []
    for number, (to, source, room) in enumerate(rounds):
        told = _message(known, world.device)
        if early:
            leaving.append(world.exchange(told, None, to=to))
            coming[number].wait()
        else:
            world.exchange(told, room, to=to, source=source).wait()
        known = _merged(known, room.cpu().numpy().tobytes())
    for pending in leaving:
        pending.wait()
    mine, other = known[:LINE], known[LINE:]
    if any(other):
        raise OutOfStep(told_apart(mine, other))


@functools.lru_cache(maxsize=256)  # the same calls come again with every step
def _message(known: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(known), dtype=torch.uint8).to(device)


def steps(size: int) -> int:
    """Return how many messages each of `size` ranks sends."""
    return len(_distances(size))


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def _merged(known: bytes, heard: bytes) -> bytes:
    """Return what is known now: a rank's own line, and the first one that says something else."""
    if any(known[LINE:]):
        return known
    for told in (heard[:LINE], heard[LINE:]):
        if any(told) and not alike(told, known[:LINE]):
            return known[:LINE] + told
    return known
