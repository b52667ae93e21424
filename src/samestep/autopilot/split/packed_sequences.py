"""Pads packed sequences of split calls to the longest sequence of the batch, not of the slice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samestep.autopilot.split.activation_checkpoints import current_split
from samestep.autopilot.split.joint_failure import before_collective
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping


@contextmanager
def sequences_of_slices() -> Iterator[None]:
    """Let `pad_packed_sequence` pad a slice to the longest sequence of the whole batch.

    Otherwise a mean over time, or an output with a time dimension, would depend on the samples of the slice.
    """

    def pad_packed_sequence(
        original: Callable[..., Any],
        sequence: Any,
        batch_first: bool = False,  # noqa: FBT001, FBT002 - as torch has it
        padding_value: float = 0.0,
        total_length: int | None = None,
    ) -> Any:
        split = current_split()
        if split is not None and total_length is None:
            longest = torch.tensor([float(len(sequence.batch_sizes))], device=split.world.device)
            before_collective()
            split.world.all_reduce(longest, op="max")
            total_length = int(longest)
        return original(sequence, batch_first, padding_value, total_length)

    with attached(declarations.PADDED_SEQUENCE, wrapping(pad_packed_sequence)):
        yield
