"""Running statistics of norms over each rank's share, kept equal on all ranks.

With `local` batch norm, and with instance norm always, each rank's running statistics follow its own samples.
They are moving averages, linear in what they average; so the average of the ranks' statistics is the moving
average of the ranks' averaged batch statistics, and it may be taken once per exchange.
"""

from collections.abc import Iterable, Sequence
from weakref import ref

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.replicas.bucket import Kind, copy_all, kind_of
from samestep.world.world import World

BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the only name of what they share
InstanceNorm = nn.modules.instancenorm._InstanceNorm  # noqa: SLF001
Norm = nn.modules.batchnorm._NormBase  # noqa: SLF001 - of both


class Tracked:
    """A norm with running statistics, and how often it has seen samples since the last exchange."""

    def __init__(self, module: Norm) -> None:
        self._module = ref(module)  # weak: it may be the model itself
        self.seen = 0

    @property
    def module(self) -> Norm:
        """The norm, which outlives the exchanges of its model."""
        module = self._module()
        assert module is not None
        return module

    def buffers(self) -> list[Tensor]:
        """Return the statistics; read anew each time, because ``model.to`` replaces buffers.

        As `data`, so that a graph that is kept for a second backward does not mind when they change.
        """
        held = self.module._buffers  # noqa: SLF001 - attributes of modules are slow, and this is each step
        mean, var = held["running_mean"], held["running_var"]
        assert mean is not None
        assert var is not None
        return [mean.data, var.data]

    def counter(self) -> Tensor | None:
        """Return the number of training steps, where the module counts them; instance norm does not."""
        module = self.module
        count = module.num_batches_tracked if isinstance(module, BatchNorm) else None
        return None if count is None else count.data


class RunningStatistics:
    """The running statistics of norms of one kind, as a passenger of the gradients' exchange.

    ::

        seat   | mean 0 | var 0 | mean 1 | var 1 | ... | seen 0 | seen 1 | ... | steps 0 | steps 1 | ... |

    A rank that has seen no samples contributes nothing, and its weight neither: the result is the average
    over the others. Where nobody has, as in evaluation mode, the statistics keep their bits. The steps, so
    many forwards since the last exchange, are averaged in the same way and rounded: all count alike.
    """

    def __init__(self, tracked: Sequence[Tracked]) -> None:
        self._tracked = tracked
        buffers = self._buffers()
        self.kind: Kind = kind_of(buffers[0])
        self.seat: Tensor | None = None
        self._sizes = [buffer.numel() for buffer in buffers]
        self.numel = sum(self._sizes) + 2 * len(tracked)
        owners = torch.arange(len(tracked)).repeat_interleave(2)  # (buffers,)
        self._owner = owners.repeat_interleave(torch.tensor(self._sizes)).to(buffers[0].device)  # (values,)
        self._loaded: list[int] | None = None
        self._aboard: list[Tensor] = []

    def board(self, seat: Tensor) -> None:
        """See `Passenger.board`."""
        self.seat = seat
        self._values, self._tail = torch.split(seat, [sum(self._sizes), 2 * len(self._tracked)])
        self._slots = list(torch.split(self._values, self._sizes))

    def load(self) -> None:
        """See `Passenger.load`."""
        self._aboard = buffers = self._buffers()
        if kind_of(buffers[0]) != self.kind:
            raise UsageError(
                f"running statistics were {self.kind[0]} when replicate() was called and are "
                f"{buffers[0].dtype} now. Change dtype and device of a model before replicate()."
            )
        steps = [tracked.seen for tracked in self._tracked]
        if steps != self._loaded:  # else the device has them already; to send them makes it wait
            dtype, device = self.kind
            self._loaded = steps
            self._mine = torch.tensor([*map(bool, steps), *steps], dtype=dtype).to(device)
        copy_all([*self._slots, self._tail], [*buffers, self._mine])
        if not all(steps):
            self._values.masked_fill_(self._tail[self._owner] == 0, 0)  # never 0 * NaN

    def unload(self) -> None:
        """See `Passenger.unload`."""
        if self.kind[1].type == "cpu" and all(self._loaded or ()) and torch.equal(self._tail, self._mine):
            copy_all(self._aboard, self._slots)  # all ranks have seen samples, and as many
            self._forget()
            return
        weights, steps = self._tail.chunk(2)  # (tracked,) each
        weight = weights[self._owner]  # (values,)
        self._values.div_(weight)
        buffers = self._aboard
        if not all(tracked.seen for tracked in self._tracked):
            # Chosen on the device; a look at the weights would make it wait.
            now = torch.cat([buffer.reshape(-1) for buffer in buffers])
            self._values.copy_(torch.where(weight > 0, self._values, now))
        copy_all(buffers, self._slots)
        self._count(torch.nan_to_num(steps / weights).round())  # NaN where nobody has seen samples
        self._forget()

    def _forget(self) -> None:
        self._aboard = []
        for tracked in self._tracked:
            tracked.seen = 0

    def _count(self, steps: Tensor) -> None:
        """Let all ranks have counted `steps`, (tracked,), since the last exchange."""
        missing = (steps - self._mine.chunk(2)[1]).long().unbind()
        counters = [tracked.counter() for tracked in self._tracked]
        pairs = [
            (counter, more) for counter, more in zip(counters, missing, strict=True) if counter is not None
        ]
        if pairs:
            torch._foreach_add_([counter for counter, _ in pairs], [more for _, more in pairs])

    def _buffers(self) -> list[Tensor]:
        return [buffer for tracked in self._tracked for buffer in tracked.buffers()]


def by_kind(tracked: Iterable[Tracked]) -> list[RunningStatistics]:
    """Return `tracked` in groups of one dtype and device."""
    groups: dict[Kind, list[Tracked]] = {}
    for one in tracked:
        groups.setdefault(kind_of(one.buffers()[0]), []).append(one)
    return [RunningStatistics(group) for group in groups.values()]


def average_statistics(world: World, statistics: Sequence[RunningStatistics]) -> None:
    """Average running statistics in messages of their own."""
    for passenger in statistics:
        dtype, device = passenger.kind
        seat, before = torch.zeros(passenger.numel, dtype=dtype, device=device), passenger.seat
        passenger.board(seat)
        passenger.load()
        world.average_later(seat).wait()
        passenger.unload()
        if before is not None:  # in its bucket
            passenger.board(before)
