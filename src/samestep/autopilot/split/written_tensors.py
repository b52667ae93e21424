"""Compares what the slices of a call have written into tensors of their module, such as a buffer.

Each slice writes what it computes. An equivalence check has found that to be what the whole batch writes, but
it may have been so by chance::

    self.bias += 0.01 * torch.sign(load.mean() - load)    the slices of many batches have the same signs

Where ranks have written different values, the call is computed unsplit.
"""

from collections.abc import Iterator, Set
from operator import itemgetter

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
        tensors = _tensors(module, {*plan.sides}) if plan.rewrites else ()
        self._before = [(tensor, version_of(tensor), tensor.numel() <= _SMALL) for tensor in tensors]

    def agree(self, split: BatchSplit) -> None:
        """Raise if the ranks have not written the same.

        Raises:
            UsageError: they have written different values.
        """
        written = [
            digest_of(tensor) if is_small or version_of(tensor) != version else None
            for tensor, version, is_small in self._before
        ]
        if not written:
            return
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        sums = torch.stack([zero if pair is None else pair[0].cpu() for pair in written])
        sizes = torch.stack([zero if pair is None else pair[1].cpu() for pair in written])
        message = torch.stack([sums, -sums, sizes])
        split.world.all_reduce(message, op="max")
        largest, negative_least, sizes = message.unbind()
        raise_now((largest + negative_least > _EQUAL * sizes).any(), OTHER_THAN_SLICES)


def _tensors(module: nn.Module, sides: Set[SideOutput]) -> Iterator[Tensor]:
    """Yield the buffers of a module, and the tensors in its attributes, in an order that all ranks have."""
    # The statistics of batch norm are those of all slices.
    parts = [part for part in module_parts.modules(module) if not isinstance(part, _NormBase)]
    for part in parts:
        buffers = sorted(part.named_buffers(recurse=False), key=itemgetter(0))
        yield from (buffer for _, buffer in buffers)
    attributes = [(name, key) for name, key, value in own_attributes(module) if isinstance(value, Tensor)]
    for name, key in sorted({*attributes} - sides):
        yield getattr(module_parts.submodule(module, name), key)
