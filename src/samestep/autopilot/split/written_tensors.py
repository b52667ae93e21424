"""Compares what the slices of a call have written into tensors of their module, such as a buffer.

Each slice writes what it computes. An equivalence check has found that to be what the whole batch writes, but
it may have been so by chance::

    self.bias += 0.01 * torch.sign(load.mean() - load)    the slices of many batches have the same signs

Where ranks have written different values, the call is computed unsplit.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from samestep.autopilot.split.call_plans import SplitPlan, digest_of
from samestep.autopilot.split.sharded_autograd import BatchSplit
from samestep.autopilot.state.saved_state import SideOutput, own_attributes, version_of
from samestep.hooks import module_parts
from samestep.parallel.gradients.batch_norm import raise_now

OTHER_THAN_SLICES = "the slices of a call have written different values into a tensor of the model"
_SMALL = 1 << 12
"""Elements up to which a tensor is compared though its version is as before: writes through ``data`` leave it
as it is. A guess."""
_EQUAL = 1e-6
"""Relative difference up to which values are equal: processors may round differently."""


class WrittenTensors:
    """The tensors of a module that a call writes to, if `plan` is that of such calls; else none."""

    def __init__(self, module: nn.Module, plan: SplitPlan) -> None:
        places = sorted({*_places(module)} - {*plan.sides}) if plan.rewrites else []
        self._owners = [(module_parts.submodule(module, name), key) for name, key in places]
        self._before = [_state(getattr(owner, key, None)) for owner, key in self._owners]

    def agree(self, split: BatchSplit) -> None:
        """Raise if the ranks have not written the same.

        Raises:
            UsageError: they have written different values.
        """
        if not self._owners:
            return
        written = [self._written(place, split.world.device) for place in range(len(self._owners))]
        sums, sizes = torch.stack(written).unbind(1)
        message = torch.stack([sums, -sums, sizes])
        split.world.all_reduce(message, op="max")
        largest, negative_least, sizes = message.unbind()
        raise_now((largest + negative_least > _EQUAL * sizes).any(), OTHER_THAN_SLICES)

    def _written(self, place: int, device: torch.device) -> Tensor:
        """Return what a tensor is compared by: two zeros if the call has not written to it."""
        owner, key = self._owners[place]
        tensor = getattr(owner, key, None)
        is_same = _state(tensor) == self._before[place]
        if not isinstance(tensor, Tensor) or (is_same and tensor.numel() > _SMALL):
            return torch.zeros(2, dtype=torch.float64, device=device)
        return torch.stack(digest_of(tensor)).to(device)


def _state(tensor: Any) -> tuple[int, int | None] | None:
    """Return what changes with a tensor that a call replaces, or writes to."""
    return (id(tensor), version_of(tensor)) if isinstance(tensor, Tensor) else None


def _places(module: nn.Module) -> Iterator[SideOutput]:
    """Yield the buffers of a module, and the attributes that hold a tensor."""
    for name, part in module_parts.named_modules(module):
        if not isinstance(part, _NormBase):  # whose statistics are those of all slices
            yield from ((name, key) for key, _ in part.named_buffers(recurse=False))
    yield from ((name, key) for name, key, value in own_attributes(module) if isinstance(value, Tensor))
