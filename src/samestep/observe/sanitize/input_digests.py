"""Computes digests of a model's inputs and of the random state, to compare them between ranks."""

import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from samestep.hooks.tensor_tree import parts_of
from samestep.parallel.gradients.weight_checksum import checksum

_ROWS = 1024
"""Maximum samples of a call that are hashed."""


def rows_of(values: Iterable[Any]) -> tuple[int, ...]:
    """Return a hash of each sample in the first tensor among `values`; empty without a tensor."""
    for value in values:
        if isinstance(value, Tensor) and value.dim() and value.numel():
            return tuple(int(checksum(row)) for row in value.detach()[:_ROWS])
    return ()


def random_digest(device: torch.device) -> int:
    """Return a digest of the random state that a call on `device` draws from."""
    state = torch.get_rng_state()
    if device.type == "cuda":
        state = torch.cat([state, torch.cuda.get_rng_state(device)])
    return zlib.crc32(state.numpy().tobytes()) or 1


def data_in(value: Any) -> list[Tensor]:
    """Return the first tensor in `value` that is not computed from parameters: its rows are samples.

    In a list, return all such tensors: they may be one image each.
    """
    if isinstance(value, PackedSequence):
        value = value.data
    if isinstance(value, Tensor):
        return [value] if value.dim() and value.numel() and not value.requires_grad else []
    found = (data_in(part) for _, part in parts_of(value))
    return (
        [one for some in found for one in some] if isinstance(value, list) else next(filter(None, found), [])
    )
