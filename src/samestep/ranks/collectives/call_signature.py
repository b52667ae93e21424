"""Encodes a collective call as a signature: a record of fixed length that ranks compare and send."""

import functools
import hashlib

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep

SIGNATURE_BYTES = 128
"""Bytes of a signature: two cache lines, which hold the text of usual calls."""
NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")
"""The tensor of a call without one; its type is that of all ranks, whatever their default types are."""
_RANK_DIGITS = 5  # digits of the rank at the start of a signature, which is below `MOST_WORKERS`
_DIGEST_DIGITS = 16  # of a text that is cut: 64 bits, which differ for any two calls of a script


def signature(rank: int, call: str, tensor: Tensor) -> bytes:
    """Return the `SIGNATURE_BYTES` bytes that describe a rank's call with its arguments."""
    return _signature(rank, call, tensor.dtype, tensor.shape)


def same_call(first: bytes, second: bytes) -> bool:
    """Return whether two ranks' signatures describe the same call."""
    return first[_RANK_DIGITS:] == second[_RANK_DIGITS:]


def check_same_call(expected: bytes, received: bytes) -> None:
    """Check that another rank's signature describes the call of this rank.

    Raises:
        OutOfStep: it does not.
    """
    if not same_call(expected, received):
        raise OutOfStep(describe_mismatch(expected, received))


def describe_mismatch(first: bytes, second: bytes) -> str:
    """Return the message of an error about two signatures that differ."""
    return (
        f"the ranks are not in one collective: {_described(first)}, {_described(second)}. All ranks have to "
        "make the same calls in the same order, with equal shapes and types."
    )


@functools.lru_cache(maxsize=1024)  # every training step makes the same calls
def _signature(rank: int, call: str, dtype: torch.dtype, shape: torch.Size) -> bytes:
    sizes = ", ".join(map(str, shape))
    text = f"{call} of {str(dtype).removeprefix('torch.')} [{sizes}]".encode()
    length = SIGNATURE_BYTES - _RANK_DIGITS
    if len(text) > length:  # calls that differ behind the cut must still differ
        digest = hashlib.sha256(text).hexdigest()[:_DIGEST_DIGITS].encode()
        text = text[: length - len(digest)] + digest
    return f"{rank:0{_RANK_DIGITS}d}".encode() + text.ljust(length, b" ")


def _described(record: bytes) -> str:
    text = record.decode(errors="replace")
    return f"rank {int(text[:_RANK_DIGITS])} calls {text[_RANK_DIGITS:].rstrip()}"
