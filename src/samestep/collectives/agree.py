"""Ranks that are not in one collective find out before the first byte of a tensor moves.

Each rank says in a line what it calls, and passes on what it has heard; after round k it knows of 2^(k+1)
ranks::

    round 0    0 > 1 > 2 > 3 > 4 > 0     each hears of 1 other
    round 1    0 > 2 > 4 > 1 > 3 > 0     of 3
    round 2    0 > 4 > 3 > 2 > 1 > 0     of all

Cost: ceil(log2 N) steps of `MESSAGE` bytes, all ranks at once, so that no rank is left waiting when another
refuses.

Source: D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization, 1988 (the dissemination
barrier).
"""

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.world.world import World

_LINE = 128
MESSAGE = 2 * _LINE
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
    rank, size = world.place.rank, world.place.size
    shape = ", ".join(map(str, tensor.shape))
    own = f"{call} of {str(tensor.dtype).removeprefix('torch.')} [{shape}]"
    known = _line(rank, own) + bytes(_LINE)
    for distance in _distances(size):
        told = torch.frombuffer(bytearray(known), dtype=torch.uint8).to(world.device)
        heard = torch.empty_like(told)
        to, source = (rank + distance) % size, (rank - distance) % size
        world.exchange(told, heard, to=to, source=source).wait()
        known = _merged(known, bytes(heard.tolist()))
    mine, other = known[:_LINE], known[_LINE:]
    if any(other):
        raise OutOfStep(
            f"the ranks are not in one collective: {_words(mine)}, {_words(other)}. All ranks have to "
            "make the same calls in the same order, with equal shapes and types."
        )


def steps(size: int) -> int:
    """Return how many messages each of `size` ranks sends."""
    return len(_distances(size))


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def _line(rank: int, call: str) -> bytes:
    return f"{rank:05d}{call}".encode()[:_LINE].ljust(_LINE, b" ")


def _words(line: bytes) -> str:
    text = line.decode(errors="replace")
    return f"rank {int(text[:5])} calls {text[5:].rstrip()}"


def _merged(known: bytes, heard: bytes) -> bytes:
    """Return what is known now: a rank's own line, and the first one that says something else."""
    if any(known[_LINE:]):
        return known
    for line in (heard[:_LINE], heard[_LINE:]):
        if any(line) and line[5:] != known[5:_LINE]:
            return known[:_LINE] + line
    return known
