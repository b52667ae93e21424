"""Summarizes a run in a sentence, and finds what limits it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Literal, TypeAlias

from samestep.base.units import counted
from samestep.report.read_run import PHASES, Run

_DATA_SHARE = 0.10
_SYNC_SHARE = 0.30
_SLOW = 0.85

HintCode: TypeAlias = Literal[
    "loss-not-finite", "waiting-for-data", "exposed-communication", "slow-rank", "label"
]
"""Stable codes of hints."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A problem of a run, and what to do about it."""

    code: HintCode
    message: str
    rank: int | None = None


def headline(run: Run) -> str:
    """Return a one-sentence summary of the run."""
    subject = counted(run.workers, "worker") if run.workers else "A run"
    where = f"most of a step is {_largest_phase(run)}" if run.steps["step"] else "no step was taken"
    accuracy = (run.result or (run.evaluations or [{}])[-1]).get("accuracy")
    right = "" if accuracy is None else f"{accuracy:.2%} of the test set right"
    if run.result:
        trained = f"{counted(run.result['epochs'], 'epoch')}, {counted(run.result['steps'], 'step')}"
        return f"{subject}: {right} after {trained}, {run.result['seconds']:,.1f} s; {where}."
    return (
        f"{subject}: not finished, {counted(run.num_steps, 'step')} so far{right and ', '}{right}; {where}."
    )


def shares(run: Run) -> dict[str, float]:
    """Return the median seconds of each phase of a step, in order."""
    return {name: _median(run.steps[name]) for name in PHASES}


def hints(run: Run) -> Iterator[Hint]:
    """Yield the problems of a run."""
    lost = sum(not math.isfinite(loss) for loss in run.steps["loss"])
    if lost:
        steps = counted(lost, "step")
        yield Hint(
            "loss-not-finite",
            f"The loss was not finite in {steps}: try a lower learning rate, or --clip-norm.",
        )
    phases = shares(run)
    step_s = sum(phases.values()) or 1.0
    data, sync = phases["data"] / step_s, phases["exposed_sync"] / step_s
    if data > _DATA_SHARE:
        yield Hint(
            "waiting-for-data",
            f"{data:.0%} of a step is waiting for data: use more --loader-workers, or keep data in memory.",
        )
    if sync > _SYNC_SHARE:
        yield Hint(
            "exposed-communication",
            f"{sync:.0%} of a step is exposed communication of gradients: use fewer workers, a larger "
            "--batch-size (which changes the training), or --compress.",
        )
    yield from _slow_ranks(run)
    if run.config.get("label"):
        yield Hint("label", str(run.config["label"]))


def _slow_ranks(run: Run) -> Iterator[Hint]:
    """Yield the ranks that compute slower than the others since the last start.

    Before the last start, a rank's share of the batch and its machine can have been different.
    """
    began = run.sessions[-1]["step"] if run.sessions else 0
    rows = sorted((row for row in run.ranks if row["step"] > began), key=lambda row: row["rank"])
    busy = {
        rank: _median(row.get("forward", 0.0) + row.get("backward", 0.0) for row in own)
        for rank, own in groupby(rows, key=lambda row: row["rank"])
    }
    typical = median(busy.values()) if len(busy) > 1 else 0.0
    for rank, seconds in busy.items():
        if seconds and typical and typical / seconds < _SLOW:
            yield Hint(
                "slow-rank",
                f"Rank {rank} computes at {typical / seconds:.0%} of the median speed: the others wait.",
                rank=rank,
            )


def _largest_phase(run: Run) -> str:
    phases = shares(run)
    step_s = sum(phases.values())
    name = max(phases, key=lambda phase: phases[phase])
    return f"{name.replace('_', ' ')} ({phases[name] / step_s:.0%})" if step_s else "too short to measure"


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else 0.0
