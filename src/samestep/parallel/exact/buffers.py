"""Resets a model's buffers before each shard of a step, and combines the shards' values after the step.

Floating-point buffers, such as batch norm's running statistics, become the mean over the shards that changed
them. Integer buffers become the value on which all shards that changed them agree, such as a pointer that
wraps or a flag that is cleared; or, if no shard decreased a number, the maximum, such as a count. Other
differences have no common value, and raise UsageError.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class _IntegerBuffer:
    """The shards' values of an integer buffer."""

    before: Tensor
    maximum: Tensor  # maximum of each number over the shards
    inverted: Tensor  # complement of the minimum, so that a maximum over ranks combines both

    def add(self, value: Tensor) -> None:
        """Add the value of one more shard."""
        torch.maximum(self.maximum, value, out=self.maximum)
        torch.maximum(self.inverted, ~value, out=self.inverted)

    def next_value(self, name: str) -> Tensor:
        """Return the value for the next step of a buffer that was changed.

        Raises:
            UsageError: the shards' values have no common value.
        """
        minimum = ~self.inverted
        if not torch.equal(self.maximum, minimum) and bool((minimum < self.before).any()):
            raise UsageError(
                f"exact shards: the shards of one step changed the integer buffer {name} to different "
                "values, some smaller than before. All shards that change it must agree, or only increase it."
            )
        return self.maximum


class Buffers:
    """The buffers of a model at the start of a step."""

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
        """For integer buffers, int64: the maxima over this rank's shards, then the complements of the minima;
        None without integer buffers."""
        parts = [] if self.largest is None else torch.split(self.largest, [one.numel() for one in flat * 2])
        self._integers = {
            name: _IntegerBuffer(before, maximum.view(before.shape), inverted.view(before.shape))
            for (name, before), maximum, inverted in zip(
                whole.items(), parts[: len(flat)], parts[len(flat) :], strict=True
            )
        }

    def take(self) -> tuple[list[bool], list[Tensor]]:
        """Return the buffers that a shard has changed, and restore those of the start of the step.

        Integer buffers are combined in `largest` instead.

        Returns:
            whether each buffer was changed; and the values, one tensor for each dtype, zero if unchanged.

        Raises:
            UsageError: buffers were added or removed.
        """
        now = self._now()
        # Compared by value: batch norm changes its statistics without increasing their version.
        changed = {name for name, before in self._before.items() if not torch.equal(now[name], before)}
        for name in changed & self._integers.keys():
            self._integers[name].add(now[name].long())
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
        """Set the buffers to the combined values of all shards.

        Raises:
            UsageError: the shards' values of an integer buffer have no common value.
        """
        counts = dict(zip(self._before, changed, strict=True))
        now = self._now()
        for names, row in zip(self._by_dtype().values(), rows, strict=True):
            sizes = [self._before[name].numel() for name in names]
            for name, value in zip(names, torch.split(row, sizes), strict=True):
                if counts[name]:
                    now[name].copy_((value / counts[name]).view(now[name].shape))
        for name, whole in self._integers.items():
            if counts[name]:
                now[name].copy_(whole.next_value(name))

    def _now(self) -> dict[str, Tensor]:
        now = {name: buffer.detach() for name, buffer in self._model.named_buffers()}
        if now.keys() != self._before.keys():
            raise UsageError(
                "--exact: the model added or removed buffers during a step. Register them before training."
            )
        return now

    def _by_dtype(self) -> dict[torch.dtype, list[str]]:
        """Return the names of the floating-point buffers."""
        groups: dict[torch.dtype, list[str]] = {}
        for name, before in self._before.items():
            if name not in self._integers:
                groups.setdefault(before.dtype, []).append(name)
        return groups
