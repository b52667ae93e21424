"""Samples the CPU load of other programs on this host, while no run is in progress."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from time import sleep
from typing import NamedTuple

from samestep.base.machine.description import cpu_share
from samestep.base.machine.kernel_files import text_of
from samestep.base.units import counted
from samestep.scaling.analysis.study import Note

SAMPLE_S = 0.3
"""The duration of a sample; the kernel counts in hundredths of a second."""

# The number of busy processors that is reported, of any number, since a step waits for the slowest.
_MUCH = 0.25
_THIN = 0.1  # the part of a processor that an idle system uses, a little of it on each of many
_WAITS = (3, 4)  # the columns of a processor's line that are idle time: idle, and waiting for a disk
_COUNTED = 8  # the number of columns to read; the later ones are included in them


class Load(NamedTuple):
    """The CPU load of other programs."""

    busy: float  # busy processors
    among: int  # the processors of this process's affinity mask; a CPU quota is not included

    @property
    def is_much(self) -> bool:
        """Whether it is reported."""
        return self.busy >= _MUCH

    def in_words(self) -> str:
        """Return the busy processors and their total number.

        >>> Load(1.234, 2).in_words()
        '1.2 of 2 processors'
        """
        return f"{self.busy:.1f} of {counted(self.among, 'processor')}"


def sample_load(stat: Path = Path("/proc/stat")) -> Load | None:
    """Return the current load of other programs; None if the system has no counters."""
    before = _counts(stat)
    sleep(SAMPLE_S)
    after = _counts(stat)
    allowed = [f"cpu{number}" for number in cpu_share().allowed]
    passed = [
        [now - then for then, now in zip(before[name], after[name], strict=True)]
        for name in allowed
        if name in before and name in after
    ]
    known = [ticks for ticks in passed if sum(ticks) > 0]
    if not known:
        return None
    shares = [1 - sum(ticks[k] for k in _WAITS) / sum(ticks) for ticks in known]
    return Load(sum(share for share in shares if share > _THIN), len(known))


def load_notes(samples: Sequence[Load]) -> Iterator[Note]:
    """Yield a note on the load before each of some runs, if it was large."""
    if any(load.is_much for load in samples):
        least, most, usual = min(samples), max(samples), fmean(load.busy for load in samples)
        ends = "" if f"{least.busy:.1f}" == f"{most.busy:.1f}" else f"{least.busy:.1f} to "
        text = f"Other programs used {ends}{most.in_words()} before the runs, {usual:.1f} on average."
        yield Note("background-load", text)


def _counts(stat: Path) -> Mapping[str, Sequence[int]]:
    """Return the ticks of each processor since its start, by kind."""
    lines = [line.split() for line in text_of(stat).splitlines() if line.startswith("cpu")]
    return {name: [int(ticks) for ticks in counts[:_COUNTED]] for name, *counts in lines}
