"""The steps of one run over all of its ranks: which count, how fast they were, who waited for whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low
from typing import Any, TypeAlias

from samestep.base import units
from samestep.base.errors import UsageError
from samestep.scaling.rank_files import RankFile, Run
from samestep.scaling.study import PHASES, Span

Step: TypeAlias = Sequence[Mapping[str, Any]]
"""The lines that the ranks wrote about one step, by rank."""

_DRAWN = ("other", "data", "to_device", "forward", "backward", "exposed_sync", "optimizer")
"""The order of phases on a time line; what a script does besides stands mostly before its batch."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The steps of a run that count.

    Args:
        steps: in order.
        left_out: measured steps that do not count, since a rank evaluated in them.
    """

    steps: Sequence[Step]
    left_out: int

    @property
    def with_evaluations(self) -> bool:
        """Whether those in which a rank evaluated count, as most of them have an evaluation."""
        return any(map(_has_evaluation, self.steps))

    @property
    def global_batch(self) -> float:
        """Samples of a step on all ranks: the median, as the last of an epoch may be smaller."""
        return float(median(_samples(step) for step in self.steps))

    @property
    def seconds(self) -> float:
        """What the slowest rank took for all of them."""
        by_rank = zip(*self.steps, strict=True)
        return float(max(sum(line["seconds"] for line in lines) for lines in by_rank))

    @property
    def samples_per_second(self) -> float:
        """The samples of all steps by the time that they took."""
        return sum(_samples(step) for step in self.steps) / self.seconds

    @property
    def exchange_s(self) -> float:
        """Seconds of a step in which all ranks waited: nobody was waited for, so that is the exchange."""
        return fmean(min(_synced(line) for line in step) for step in self.steps)

    @property
    def waiting_s(self) -> float:
        """Seconds that a rank waited for others in a step, the mean over ranks."""
        return fmean(fmean(_synced(line) for line in step) for step in self.steps) - self.exchange_s

    @property
    def exchange_bytes(self) -> int | None:
        """Bytes of gradients that a rank exchanges in a step: the median; None where one does not say."""
        told = [line.get("exchange_bytes") or 0 for step in self.steps for line in step]
        return int(median_low(told)) if all(told) and len(self.steps[0]) > 1 else None

    def phases(self) -> list[dict[str, float]]:
        """Return for each rank the mean seconds of each phase."""
        return [
            {name: max(0.0, fmean(line.get(name, 0.0) for line in lines)) for name in PHASES}
            for lines in zip(*self.steps, strict=True)
        ]

    def timeline(self) -> tuple[tuple[Span, ...], ...]:
        """Return a step of the usual length, for each rank its phases one after the other.

        Ranks leave the exchange together, as no rank has it before all have come. By when their steps began
        they could not be drawn: what a rank does besides may stand at either end of its step, and is drawn
        first; and hosts have clocks of their own.
        """
        seconds = [max(line["seconds"] for line in step) for step in self.steps]
        step = self.steps[seconds.index(median_low(seconds))]
        begins = [-sum(line.get(name, 0.0) for name in _DRAWN[:-1]) for line in step]
        return tuple(
            tuple(_spans(line, begin - min(begins))) for line, begin in zip(step, begins, strict=True)
        )


def steady(run: Run) -> Steady:
    """Return the steps of `run` that count, see `kept_steps`.

    Raises:
        UsageError: there are none.
    """
    steps, kept = _common(run), kept_steps(run)
    who = units.counted(run.workers, "worker")
    if not kept or not any(_samples(step) for step in kept):
        raise UsageError(f"no step of the run on {who} counts: {_why(run.ranks, len(steps))}.")
    counted = Steady(kept, len(steps) - len(kept))
    if counted.seconds <= 0:
        raise UsageError(f"no step of the run on {who} counts: they took no time.")
    return counted


def kept_steps(run: Run) -> list[Step]:
    """Return the steps of `run` that all ranks took, with samples or without: those in which none evaluated.

    Where most have an evaluation, it is a part of the training, as of an agent's that acts before it learns,
    and all of them count.
    """
    steps = _common(run)
    without = [step for step in steps if not _has_evaluation(step)]
    return without if 2 * len(without) >= len(steps) else steps


def _has_evaluation(step: Step) -> bool:
    return any(line.get("evaluated") for line in step)


def _common(run: Run) -> list[Step]:
    by_rank = [{line["step"]: line for line in rank.steps} for rank in run.ranks]
    numbers = sorted(set.intersection(*(set(lines) for lines in by_rank)))
    return [[lines[number] for lines in by_rank] for number in numbers]


def _why(ranks: Sequence[RankFile], steps: int) -> str:
    if not steps:
        ended = next((rank.end.get("message") for rank in ranks if rank.end.get("message")), "")
        return f"it ended before a measured step was through on all ranks{f' ({ended})' if ended else ''}"
    return "no samples were seen"


def _samples(step: Step) -> float:
    return float(sum(line["samples"] for line in step))


def _synced(line: Mapping[str, Any]) -> float:
    return float(line.get("exposed_sync", 0.0))


def _spans(line: Mapping[str, Any], begin: float) -> list[Span]:
    spans = []
    for name in _DRAWN:
        length = float(line.get(name, 0.0))
        if length > 0:
            spans.append(Span(name, begin, begin + length))
            begin += length
    return spans
