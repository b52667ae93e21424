"""A model's buffers while its shards are computed one by one: each begins with those of the step before.

What the shards make of them, batch norm's running statistics above all, is averaged over the shards that
changed them. Whole numbers have no mean. What all shards that changed them agree on is taken: a pointer that
wraps, a flag that is cleared. Where none made a number smaller, the largest is: the count of a shard that has
seen most. What else shards may differ in has no one value, and is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Whole:
    """What shards have made of a buffer of whole numbers."""

    before: Tensor
    most: Tensor
    """The largest that each number became."""
    inverted: Tensor
    """The complement of the smallest, so that this is a largest as well."""

    def note(self, made: Tensor) -> None:
        """Take in what one more shard has made of it."""
        torch.maximum(self.most, made, out=self.most)
        torch.maximum(self.inverted, ~made, out=self.inverted)

    def settled(self, name: str) -> Tensor:
        """Return the value of the next step, for a buffer that was changed.

        Raises:
            UsageError: there is no one value.
        """
        least = ~self.inverted
        if not torch.equal(self.most, least) and bool((least < self.before).any()):
            raise UsageError(
                f"exact shards: of the buffer {name} the shards of one step made different numbers, some "
                "smaller than before, so that there is no one value for the next step. A buffer of whole "
                "numbers has to become the same in all shards that change it, or only to grow."
            )
        return self.most


class Buffers:
    """The buffers of a model at the beginning of a step.

    Args:
        model: whose.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        whole = {
            name: before.long()
            for name, before in self._before.items()
            if not (before.is_floating_point() or before.is_complex())
        }
        flat = [before.reshape(-1) for before in whole.values()]
        self.largest = torch.cat(flat * 2).fill_(torch.iinfo(torch.int64).min) if flat else None
        """Of whole numbers, int64: the largest that this rank's shards have made of them, then the
        complements of the smallest; None without any."""
        parts = [] if self.largest is None else torch.split(self.largest, [one.numel() for one in flat * 2])
        self._whole = {
            name: _Whole(before, most.view(before.shape), inverted.view(before.shape))
            for (name, before), most, inverted in zip(
                whole.items(), parts[: len(flat)], parts[len(flat) :], strict=True
            )
        }

    def take(self) -> tuple[list[bool], list[Tensor]]:
        """Return what a shard has changed, to be summed over shards, and put the step's beginning back.

        Whole numbers are kept here; see `largest`.

        Returns:
            whether it has, by buffer; and the values, one tensor for each dtype, zero where nothing was
            changed.

        Raises:
            UsageError: buffers came and went.
        """
        now = self._now()
        # By value: batch norm writes its statistics without telling their version counters.
        changed = {name for name, before in self._before.items() if not torch.equal(now[name], before)}
        for name in changed & self._whole.keys():
            self._whole[name].note(now[name].long())
        rows = []
        for dtype, names in self._by_dtype().items():
            values = [
                (now[name] if name in changed else torch.zeros_like(now[name])).reshape(-1) for name in names
            ]
            rows.append(torch.cat(values).to(torch.promote_types(dtype, torch.float32)))
        if changed:
            torch._foreach_copy_([now[name] for name in changed], [self._before[name] for name in changed])
        return [name in changed for name in self._before], rows

    def put(self, changed: Sequence[float], rows: Sequence[Tensor]) -> None:
        """Take over what shards have changed.

        Args:
            changed: how many shards have, by buffer.
            rows: the sums of their values.

        Raises:
            UsageError: what shards made of a buffer of whole numbers has no one value.
        """
        counts = dict(zip(self._before, changed, strict=True))
        now = self._now()
        for names, row in zip(self._by_dtype().values(), rows, strict=True):
            sizes = [self._before[name].numel() for name in names]
            for name, value in zip(names, torch.split(row, sizes), strict=True):
                if counts[name]:
                    now[name].copy_((value / counts[name]).view(now[name].shape))
        for name, whole in self._whole.items():
            if counts[name]:
                now[name].copy_(whole.settled(name))

    def _now(self) -> dict[str, Tensor]:
        now = {name: buffer.detach() for name, buffer in self._model.named_buffers()}
        if now.keys() != self._before.keys():
            raise UsageError(
                "--exact: the model's buffers came or went during a step, which shards cannot share."
            )
        return now

    def _by_dtype(self) -> dict[torch.dtype, list[str]]:
        """Return the names of the buffers that have means."""
        groups: dict[torch.dtype, list[str]] = {}
        for name, before in self._before.items():
            if name not in self._whole:
                groups.setdefault(before.dtype, []).append(name)
        return groups
