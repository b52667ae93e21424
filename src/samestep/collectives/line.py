"""What a rank says that it calls, in a line of fixed length that can be compared and told."""

import functools
import hashlib

import torch
from torch import Tensor

LINE = 128
"""Bytes of a line."""
_RANK = 5
"""Digits of the rank that a line begins with."""


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
    said = f"{call} of {str(dtype).removeprefix('torch.')} [{sizes}]".encode()
    room = LINE - _RANK
    if len(said) > room:  # what is cut off counts all the same
        rest = hashlib.sha256(said).hexdigest()[:16].encode()
        said = said[: room - len(rest)] + rest
    return f"{rank:0{_RANK}d}".encode() + said.ljust(room, b" ")


def _words(said: bytes) -> str:
    text = said.decode(errors="replace")
    return f"rank {int(text[:_RANK])} calls {text[_RANK:].rstrip()}"
