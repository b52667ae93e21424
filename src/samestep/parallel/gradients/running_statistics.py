"""Averages the running statistics of norms over the ranks, where each rank computes them over its shard.

With ``local`` batch norm, and with instance norm always, a rank's running statistics follow its own samples.
They are moving averages, and linear. So the average of the ranks' running statistics is the running average
of the ranks' averaged batch statistics, and averaging once per synchronization is enough.
"""

from collections.abc import Iterable, Sequence
from weakref import ref

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.parallel.gradients.bucket import Kind, copy_all, kind_of
from samestep.ranks.world.protocol import World

BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the only name of what they share
InstanceNorm = nn.modules.instancenorm._InstanceNorm  # noqa: SLF001
Norm = nn.modules.batchnorm._NormBase  # noqa: SLF001 - of both


class TrackedNorm:
    """A norm with running statistics, and the number of its forwards since the last synchronization."""

    def __init__(self, module: Norm) -> None:
        self._module = ref(module)  # weak: it may be the model itself
        self.forwards = 0

    @property
    def module(self) -> Norm:
        """The norm, which exists as long as its model is synchronized."""
        module = self._module()
        assert module is not None
        return module

    def buffers(self) -> list[Tensor]:
        """Return the statistics, read each time because ``model.to`` replaces buffers.

        They are returned as `data`, so that changing them does not invalidate a graph that is kept for a
        second backward.
        """
        buffers = self.module._buffers  # noqa: SLF001 - a module's attributes are slow, and this is each step
        mean, var = buffers["running_mean"], buffers["running_var"]
        assert mean is not None
        assert var is not None
        return [mean.data, var.data]

    def counter(self) -> Tensor | None:
        """Return the counter of training steps; None if the module has none, as instance norm."""
        module = self.module
        count = module.num_batches_tracked if isinstance(module, BatchNorm) else None
        return None if count is None else count.data


class RunningStatistics:
    """The running statistics of norms of one kind, as a payload of the gradients' message.

    ::

        slot   | mean 0 | var 0 | mean 1 | var 1 | ... | used 0 | used 1 | ... | steps 0 | steps 1 | ... |

    A rank without samples contributes zeros, and 0 to ``used``: the result is the average over the others. If
    no rank has samples, as in evaluation mode, the statistics keep their bits. The steps, the number of
    forwards since the last synchronization, are averaged in the same way and rounded, so that all ranks
    count the same.
    """

    def __init__(self, tracked: Sequence[TrackedNorm]) -> None:
        self._tracked = tracked
        buffers = self._buffers()
        self.kind: Kind = kind_of(buffers[0])
        self.slot: Tensor | None = None
        self._sizes = [buffer.numel() for buffer in buffers]
        self.numel = sum(self._sizes) + 2 * len(tracked)
        owners = torch.arange(len(tracked), device="cpu").repeat_interleave(2)  # (buffers,)
        self._owner = owners.repeat_interleave(torch.tensor(self._sizes, device="cpu")).to(
            buffers[0].device
        )  # (values,)
        self._loaded: list[int] | None = None
        self._packed: list[Tensor] = []

    def assign_slot(self, slot: Tensor) -> None:
        """See `Payload.assign_slot`."""
        self.slot = slot
        self._values, self._tail = torch.split(slot, [sum(self._sizes), 2 * len(self._tracked)])
        self._slots = list(torch.split(self._values, self._sizes))

    def pack(self) -> None:
        """See `Payload.pack`."""
        self._packed = buffers = self._buffers()
        if kind_of(buffers[0]) != self.kind:
            raise UsageError(
                f"running statistics were {self.kind[0]} when replicate() was called and are "
                f"{buffers[0].dtype} now. Change dtype and device of a model before replicate()."
            )
        steps = [tracked.forwards for tracked in self._tracked]
        if steps != self._loaded:  # otherwise the device has them; copying them would make it wait
            dtype, device = self.kind
            self._loaded = steps
            self._mine = torch.tensor([*map(bool, steps), *steps], dtype=dtype, device="cpu").to(device)
        copy_all([*self._slots, self._tail], [*buffers, self._mine])
        if not all(steps):
            self._values.masked_fill_(self._tail[self._owner] == 0, 0)  # never 0 * NaN

    def unpack(self) -> None:
        """See `Payload.unpack`."""
        if self.kind[1].type == "cpu" and all(self._loaded or ()) and torch.equal(self._tail, self._mine):
            copy_all(self._packed, self._slots)  # all ranks had the same number of forwards with samples
            self._reset()
            return
        weights, steps = self._tail.chunk(2)  # (tracked,) each
        weight = weights[self._owner]  # (values,)
        self._values.div_(weight)
        buffers = self._packed
        if not all(tracked.forwards for tracked in self._tracked):
            # Selected on the device, because reading the weights waits for it.
            now = torch.cat([buffer.reshape(-1) for buffer in buffers])
            self._values.copy_(torch.where(weight > 0, self._values, now))
        copy_all(buffers, self._slots)
        self._count(torch.nan_to_num(steps / weights).round())  # NaN where no rank had samples
        self._reset()

    def _reset(self) -> None:
        self._packed = []
        for tracked in self._tracked:
            tracked.forwards = 0

    def _count(self, steps: Tensor) -> None:
        """Set the counters to `steps`, (tracked,), since the last synchronization."""
        missing = (steps - self._mine.chunk(2)[1]).long().unbind()
        counters = [tracked.counter() for tracked in self._tracked]
        pairs = [
            (counter, more) for counter, more in zip(counters, missing, strict=True) if counter is not None
        ]
        if pairs:
            torch._foreach_add_([counter for counter, _ in pairs], [more for _, more in pairs])

    def _buffers(self) -> list[Tensor]:
        return [buffer for tracked in self._tracked for buffer in tracked.buffers()]


def by_kind(tracked: Iterable[TrackedNorm]) -> list[RunningStatistics]:
    """Return `tracked` in groups of one dtype and device."""
    groups: dict[Kind, list[TrackedNorm]] = {}
    for tracker in tracked:
        groups.setdefault(kind_of(tracker.buffers()[0]), []).append(tracker)
    return [RunningStatistics(group) for group in groups.values()]


def average_statistics(world: World, statistics: Sequence[RunningStatistics]) -> None:
    """Average running statistics in separate messages."""
    for payload in statistics:
        dtype, device = payload.kind
        slot, before = torch.zeros(payload.numel, dtype=dtype, device=device), payload.slot
        payload.assign_slot(slot)
        payload.pack()
        world.average_later(slot).wait()
        payload.unpack()
        if before is not None:  # in its bucket
            payload.assign_slot(before)
