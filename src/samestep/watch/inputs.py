"""What a model is called with, and the random numbers it draws, as numbers that can be compared."""

import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from samestep.replicas.fingerprint import fingerprint
from samestep.watch.tree import parts_of

_ROWS = 1024
"""Samples of a call that are looked at."""


def rows_of(values: Iterable[Any]) -> tuple[int, ...]:
    """Return a hash of each sample in the first tensor among `values`; nothing where there is none."""
    for value in values:
        if isinstance(value, Tensor) and value.dim() and value.numel():
            return tuple(int(fingerprint(row)) for row in value.detach()[:_ROWS])
    return ()


def random_digest(device: torch.device) -> int:
    """Return a digest of the random state that a call on `device` draws from."""
    state = torch.get_rng_state()
    if device.type == "cuda":
        state = torch.cat([state, torch.cuda.get_rng_state(device)])
    return zlib.crc32(state.numpy().tobytes()) or 1


def data_in(value: Any) -> list[Tensor]:
    """Return the tensors in `value` whose rows are samples: the first not computed from parameters.

    Of a list it is all such tensors: they may be one image each.
    """
    if isinstance(value, PackedSequence):
        value = value.data
    if isinstance(value, Tensor):
        return [value] if value.dim() and value.numel() and not value.requires_grad else []
    found = (data_in(part) for _, part in parts_of(value))
    return (
        [one for some in found for one in some] if isinstance(value, list) else next(filter(None, found), [])
    )
