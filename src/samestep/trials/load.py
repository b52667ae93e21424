"""What other programs do on this host: looked at while no run is on, so that all that is busy is theirs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from time import sleep
from typing import NamedTuple

from samestep.base.machine import cpu_share
from samestep.base.units import counted

LOOK_S = 0.3
"""For so long; processors count in hundredths of a second."""

_MUCH = 0.25
"""From how many busy processors on it is worth a word; of any number, as a step waits for the slowest."""
_THIN = 0.1
"""Of a processor: no more than this is what a system does by itself, a little of it on each of many."""

_WAITS = (3, 4)
"""Of what a processor's line counts: idle, and idle until a disk answers."""
_COUNTED = 8
"""What comes behind these is counted among them already."""


class Load(NamedTuple):
    """Processors that others keep busy."""

    busy: float
    among: int
    """So many, on which this process may run; a quota of their time is another thing."""

    @property
    def is_much(self) -> bool:
        """Whether it is worth a word."""
        return self.busy >= _MUCH

    def in_words(self) -> str:
        """Return how many of how many.

        >>> Load(1.234, 2).in_words()
        '1.2 of 2 processors'
        """
        return f"{self.busy:.1f} of {counted(self.among, 'processor')}"


def look(stat: Path = Path("/proc/stat")) -> Load | None:
    """Return what others do now; None where the system does not tell.

    Args:
        stat: where it does.
    """
    before = _counts(stat)
    sleep(LOOK_S)
    after = _counts(stat)
    allowed = [f"cpu{number}" for number in cpu_share().allowed]
    passed = [
        [now - then for then, now in zip(before[name], after[name], strict=True)]
        for name in allowed
        if name in before and name in after
    ]
    known = [one for one in passed if sum(one) > 0]
    if not known:
        return None
    shares = [1 - sum(one[k] for k in _WAITS) / sum(one) for one in known]
    return Load(sum(share for share in shares if share > _THIN), len(known))


def note(seen: Sequence[Load]) -> str:
    """Return what is to be said of what others did before each of some runs; empty for nothing."""
    if not any(one.is_much for one in seen):
        return ""
    least, most, usual = min(seen), max(seen), fmean(one.busy for one in seen)
    much = (
        most.in_words()
        if f"{least.busy:.1f}" == f"{most.busy:.1f}"
        else f"{least.busy:.1f} to {most.in_words()}"
    )
    return (
        f"Other programs kept {much} busy, {usual:.1f} on average, as seen before each run: "
        "rates may be less than on a quiet machine, and speedups too large or too small."
    )


def _counts(stat: Path) -> Mapping[str, Sequence[int]]:
    """Return what each processor has done since it was started, in ticks, by the kind of it."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return {}
    return {name: [int(ticks) for ticks in told[:_COUNTED]] for name, *told in lines}
