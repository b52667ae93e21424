"""Running statistics of batch norms, kept equal on all ranks.

With `local` batch norm each rank's running statistics follow its own samples. They are moving averages,
linear in what they average; so the average of the ranks' statistics is the moving average of the ranks'
averaged batch statistics, and it may be taken once per exchange.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from samestep.replicas.bucket import Kind, average_later, copy_all, kind_of
from samestep.world.world import World

BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the only name of what they share


class Tracked:
    """A batch norm with running statistics, and whether it has seen samples since the last exchange."""

    def __init__(self, module: BatchNorm) -> None:
        self.module = module
        self.seen = False

    def buffers(self) -> list[Tensor]:
        """Return the statistics; read anew each time, because ``model.to`` replaces buffers."""
        mean, var = self.module.running_mean, self.module.running_var
        assert mean is not None
        assert var is not None
        return [mean, var]


class RunningStatistics:
    """The running statistics of batch norms of one kind, as a passenger of the gradients' exchange.

    ::

        seat   | mean 0 | var 0 | mean 1 | var 1 | ... | seen 0 | seen 1 | ... |

    A rank that has seen no samples contributes nothing, and its weight neither: the result is the average
    over the others. Where nobody has, as in evaluation mode, the statistics keep their bits.
    """

    def __init__(self, tracked: Sequence[Tracked]) -> None:
        self._tracked = tracked
        buffers = self._buffers()
        self.kind: Kind = kind_of(buffers[0])
        self._sizes = [buffer.numel() for buffer in buffers]
        self.numel = sum(self._sizes) + len(tracked)
        owners = torch.arange(len(tracked)).repeat_interleave(2)  # (buffers,)
        self._owner = owners.repeat_interleave(torch.tensor(self._sizes)).to(buffers[0].device)  # (values,)

    def board(self, seat: Tensor) -> None:
        """See `Passenger.board`."""
        self._values, self._seen = torch.split(seat, [sum(self._sizes), len(self._tracked)])
        self._slots = list(torch.split(self._values, self._sizes))

    def load(self) -> None:
        """See `Passenger.load`."""
        copy_all(self._slots, self._buffers())
        if self._all_seen():
            self._seen.fill_(1)
        else:
            self._seen.copy_(torch.tensor([float(tracked.seen) for tracked in self._tracked]))
            self._values.masked_fill_(self._seen[self._owner] == 0, 0)  # never 0 * NaN

    def unload(self) -> None:
        """See `Passenger.unload`."""
        self._values.div_(self._seen[self._owner])
        buffers = self._buffers()
        if self._all_seen():
            copy_all(buffers, self._slots)
        else:  # only now is a look at the flags needed; it makes a device wait
            rows = [row for row, seen in enumerate(self._seen.repeat_interleave(2).tolist()) if seen]
            copy_all([buffers[row] for row in rows], [self._slots[row] for row in rows])
        for tracked in self._tracked:
            tracked.seen = False

    def _all_seen(self) -> bool:
        return all(tracked.seen for tracked in self._tracked)

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
        seat = torch.zeros(passenger.numel, dtype=dtype, device=device)
        passenger.board(seat)
        passenger.load()
        average_later(world, seat).wait()
        passenger.unload()
