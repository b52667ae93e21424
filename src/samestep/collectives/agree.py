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

import functools

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.world.world import World

LINE = 128
"""Bytes of what a rank says that it calls."""
MESSAGE = 2 * LINE
"""Bytes of a message: what a rank calls, and what another does that calls something else."""
_RANK = 5
"""Digits of the rank that a line begins with."""


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
    known = line(rank, call, tensor) + bytes(LINE)
    for distance in _distances(size):
        told = torch.frombuffer(bytearray(known), dtype=torch.uint8).to(world.device)
        heard = torch.empty_like(told)
        to, source = (rank + distance) % size, (rank - distance) % size
        world.exchange(told, heard, to=to, source=source).wait()
        known = _merged(known, bytes(heard.tolist()))
    mine, other = known[:LINE], known[LINE:]
    if any(other):
        raise OutOfStep(told_apart(mine, other))


def steps(size: int) -> int:
    """Return how many messages each of `size` ranks sends."""
    return len(_distances(size))


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


def line(rank: int, call: str, tensor: Tensor) -> bytes:
    """Return what a rank says that it calls, in `LINE` bytes.

    Args:
        rank: whose call.
        call: the collective, its algorithm and its arguments.
        tensor: what it is called with.
    """
    return _line(rank, call, tensor.dtype, tensor.shape)


def alike(one: bytes, other: bytes) -> bool:
    """Return whether two ranks' lines are of the same call."""
    return one[_RANK:] == other[_RANK:]


def told_apart(mine: bytes, other: bytes) -> str:
    """Return in words that two lines are not of the same call."""
    return (
        f"the ranks are not in one collective: {_words(mine)}, {_words(other)}. All ranks have to "
        "make the same calls in the same order, with equal shapes and types."
    )


@functools.lru_cache(maxsize=1024)  # the same calls come again with every step
def _line(rank: int, call: str, dtype: torch.dtype, shape: torch.Size) -> bytes:
    sizes = ", ".join(map(str, shape))
    text = f"{rank:0{_RANK}d}{call} of {str(dtype).removeprefix('torch.')} [{sizes}]"
    return text.encode()[:LINE].ljust(LINE, b" ")


def _words(said: bytes) -> str:
    text = said.decode(errors="replace")
    return f"rank {int(text[:_RANK])} calls {text[_RANK:].rstrip()}"


def _merged(known: bytes, heard: bytes) -> bytes:
    """Return what is known now: a rank's own line, and the first one that says something else."""
    if any(known[LINE:]):
        return known
    for told in (heard[:LINE], heard[LINE:]):
        if any(told) and not alike(told, known[:LINE]):
            return known[:LINE] + told
    return known
