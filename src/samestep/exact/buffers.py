"""A model's buffers while its shards are computed one by one: each begins with those of the step before.

What the shards make of them, batch norm's running statistics above all, is averaged over the shards that
changed them. Of whole numbers the largest is kept: the count of a shard that has seen most.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError


class Buffers:
    """The buffers of a model at the beginning of a step.

    Args:
        model: whose.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        whole = {
            name: before
            for name, before in self._before.items()
            if not (before.is_floating_point() or before.is_complex())
        }
        flat = [before.long().reshape(-1) for before in whole.values()]
        self.largest = torch.cat(flat) if flat else None
        """Whole numbers, int64: the largest that this rank's shards have made of them; None without any."""
        parts = [] if self.largest is None else torch.split(self.largest, [one.numel() for one in flat])
        self._largest = {
            name: part.view(before.shape) for (name, before), part in zip(whole.items(), parts, strict=True)
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
        for name in changed & self._largest.keys():
            torch.maximum(self._largest[name], now[name].long(), out=self._largest[name])
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
        """
        counts = dict(zip(self._before, changed, strict=True))
        now = self._now()
        for names, row in zip(self._by_dtype().values(), rows, strict=True):
            sizes = [self._before[name].numel() for name in names]
            for name, value in zip(names, torch.split(row, sizes), strict=True):
                if counts[name]:
                    now[name].copy_((value / counts[name]).view(now[name].shape))
        for name, value in self._largest.items():
            now[name].copy_(value)

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
            if name not in self._largest:
                groups.setdefault(before.dtype, []).append(name)
        return groups
