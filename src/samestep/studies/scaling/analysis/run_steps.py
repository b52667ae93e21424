"""Evaluates the steps of one run over all ranks: rates, phases, and waiting between ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low
from typing import Any, TypeAlias

from samestep.base import units
from samestep.base.errors import UsageError
from samestep.studies.scaling.analysis.rank_files import Run
from samestep.studies.scaling.analysis.study import PHASES, Span

Step: TypeAlias = Sequence[Mapping[str, Any]]
"""The records of one step, by rank."""

# The order of phases on a time line; a script's other work is mostly before its batch.
_DRAWN = ("other", "data", "to_device", "forward", "backward", "exposed_sync", "optimizer")


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """The counted steps of a run, and the number of those left out, because a rank evaluated in them."""

    steps: Sequence[Step]
    left_out: int

    @property
    def with_evaluations(self) -> bool:
        """Whether steps with an evaluation are counted, because most steps have one."""
        return any(map(_has_evaluation, self.steps))

    @property
    def global_batch(self) -> float:
        """Samples of a step on all ranks: the median, since the last batch of an epoch can be smaller."""
        return float(median(_samples(step) for step in self.steps))

    @property
    def seconds(self) -> float:
        """Seconds of all counted steps on the slowest rank."""
        by_rank = zip(*self.steps, strict=True)
        return float(max(sum(line["seconds"] for line in lines) for lines in by_rank))

    @property
    def samples_per_second(self) -> float:
        """The samples of all counted steps divided by their time."""
        return sum(_samples(step) for step in self.steps) / self.seconds

    @property
    def exchange_s(self) -> float:
        """Seconds of a step in which all ranks waited: the communication itself, not a wait for a rank."""
        return fmean(min(_synced(line) for line in step) for step in self.steps)

    @property
    def waiting_s(self) -> float:
        """Seconds of a step in which a rank waited for other ranks, the mean over ranks."""
        return fmean(fmean(_synced(line) for line in step) for step in self.steps) - self.exchange_s

    @property
    def exchange_bytes(self) -> int | None:
        """Gradient bytes that a rank sends in a step: the median; None if a record has none."""
        sizes = [line.get("exchange_bytes") or 0 for step in self.steps for line in step]
        return int(median_low(sizes)) if all(sizes) and len(self.steps[0]) > 1 else None

    def phases(self) -> list[dict[str, float]]:
        """Return the mean seconds of each phase, for each rank."""
        return [
            {name: max(0.0, fmean(line.get(name, 0.0) for line in lines)) for name in PHASES}
            for lines in zip(*self.steps, strict=True)
        ]

    def timeline(self) -> tuple[tuple[Span, ...], ...]:
        """Return a step of median length: for each rank its phases in sequence.

        Ranks are aligned at the end of the communication, which all of them leave at the same time. The
        recorded start times are not used: the clocks of hosts differ, and other work, which is drawn first,
        can be at either end of a step.
        """
        seconds = [max(line["seconds"] for line in step) for step in self.steps]
        step = self.steps[seconds.index(median_low(seconds))]
        begins = [-sum(line.get(name, 0.0) for name in _DRAWN[:-1]) for line in step]
        return tuple(
            tuple(_spans(line, begin - min(begins))) for line, begin in zip(step, begins, strict=True)
        )


def steady_steps(run: Run) -> SteadySteps:
    """Return the counted steps of `run`, see `kept_steps`.

    Raises:
        UsageError: there are none.
    """
    steps, kept = _common(run), kept_steps(run)
    counted = SteadySteps(kept, len(steps) - len(kept))
    why = ""
    if not steps:
        ended = next((rank.end["message"] for rank in run.ranks if rank.end.get("message")), "")
        why = f"it ended before all ranks completed a measured step{f' ({ended})' if ended else ''}"
    elif not any(map(_samples, kept)):
        why = "its steps have no samples"
    elif counted.seconds <= 0:
        why = "the recorded time of its steps is 0"
    if why:
        workers = units.counted(run.workers, "worker")
        raise UsageError(f"the run on {workers} has no step that can be counted: {why}.")
    return counted


def kept_steps(run: Run) -> list[Step]:
    """Return the steps of `run` that all ranks recorded and in which no rank evaluated.

    If most steps have an evaluation, it is part of the training (an agent that acts before it learns), and
    all steps are returned.
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
