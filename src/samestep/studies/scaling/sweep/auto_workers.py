"""Chooses workers and their threads on this host's cores by a short measurement of a script's own steps.

Each candidate runs as in a study: it ends after some steps, and the files that it writes are deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from samestep.base.env import UNTRACKED
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.studies.scaling.analysis.speedup import AS_FAST
from samestep.studies.scaling.sweep.plan import interleaved
from samestep.studies.scaling.sweep.trial import Outcome, Trial

STEPS, WARM_UP, ROUNDS = 20, 5, 2


class Candidate(NamedTuple):
    """A number of workers, each with some compute threads, in the order of preference."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{counted(self.workers, 'worker')} x {counted(self.threads, 'thread')}"


class Measured(NamedTuple):
    """The samples per second by number of workers, and the errors of those without a result."""

    rates: Mapping[int, float]
    errors: Mapping[int, str]


def candidates(cores: int) -> list[Candidate]:
    """Return the candidates on some cores: one process, a worker for each core, and powers of two between.

    >>> [tuple(one) for one in candidates(4)], [tuple(one) for one in candidates(6)]
    ([(1, 4), (2, 2), (4, 1)], [(1, 6), (2, 3), (6, 1)])
    """
    powers = {2**k for k in range(cores.bit_length()) if cores % 2**k == 0}
    return [Candidate(workers, cores // workers) for workers in sorted(powers | {cores})]


def runs(found: Sequence[Candidate], words: Sequence[str], folder: Path) -> list[Trial]:
    """Return the interleaved runs of candidates.

    `words` are the script with its arguments, and the flags of ``samestep run`` before it; `folder` is an
    absolute path for the files of the runs.
    """
    trials = []
    for number, (repeat, case) in enumerate(interleaved(found, rounds=ROUNDS, seed=0)):
        own = folder / f"{number}"
        clock = (f"--clock={own / 'clock'}", f"--clock-steps={STEPS}", f"--clock-warm-up={WARM_UP}")
        trials.append(
            Trial(
                number=number,
                workers=case.workers,
                modes=("strong",),
                repeat=repeat,
                command=("run", *clock, f"--threads={case.threads}", f"--scratch={own / 'scratch'}", *words),
                environment=UNTRACKED,
                folder=own,
            )
        )
    return trials


def measure(trials: Sequence[Trial], execute: Callable[[Trial], Outcome]) -> Measured:
    """Execute the runs; the repeats of a failed one are skipped, since they fail as well.

    Raises:
        UsageError: none has a result; the message has the reason of the first.
    """
    rates: dict[int, list[float]] = {}
    errors: dict[int, str] = {}
    for trial in trials:
        if trial.workers in errors:
            continue
        outcome = execute(trial)
        if outcome.error:
            errors[trial.workers] = outcome.error
        else:
            rates.setdefault(trial.workers, []).append(outcome.samples_per_second)
    found = {workers: fmean(own) for workers, own in rates.items() if workers not in errors}
    if not found:
        raise UsageError(f"-n auto: no steps were measured: {next(iter(errors.values()))} Give -n a number.")
    return Measured(dict(sorted(found.items())), errors)


def fastest(found: Sequence[Candidate], measured: Measured) -> Candidate:
    """Return the smallest number of workers that is as fast as the fastest, by the rule of a study."""
    most = max(measured.rates.values())
    return next(one for one in found if measured.rates.get(one.workers, 0.0) * AS_FAST >= most)


def in_words(found: Sequence[Candidate], measured: Measured) -> str:
    """Return the message with the choice and the rates of all candidates."""
    each = (
        f"{one.workers} x {one.threads}: {measured.rates[one.workers]:,.4g}"
        if one.workers in measured.rates
        else f"{one.workers} x {one.threads} failed: {measured.errors[one.workers]}"
        for one in found
    )
    return f"-n auto: {fastest(found, measured)} (workers x threads, samples/s: {', '.join(each)})"
