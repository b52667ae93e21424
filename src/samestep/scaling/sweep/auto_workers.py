"""Chooses workers and their threads on this host's cores by a short measurement of a script's own steps.

Each candidate runs once, as in a study: it ends after some steps, and the files that it writes are deleted.
All of them together have 20 seconds, beginning with those that are most likely the fastest.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from samestep.base.env import UNTRACKED
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.scaling.analysis.points import amount
from samestep.scaling.analysis.speedup import AS_FAST
from samestep.scaling.sweep.trial import Outcome, Trial

STEPS, WARM_UP = 20, 5
"""The measured steps of each run, and those before them; few, since all runs share `LIMIT_S`."""
LIMIT_S = 20.0
"""The seconds of all runs together."""
_LEAST_S = 3.0
"""The seconds without which a further run is not begun: most scripts take longer to their first step."""


class Candidate(NamedTuple):
    """A number of workers, each with some compute threads."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{counted(self.workers, 'worker')} x {counted(self.threads, 'thread')}"


class Measured(NamedTuple):
    """The samples per second of each candidate, and why others have none; there was no time for the rest."""

    rates: Mapping[Candidate, float]
    errors: Mapping[Candidate, str]


def candidates(cores: int) -> list[Candidate]:
    """Return the candidates on some cores, the smallest first.

    One process with one thread and with all cores, a worker for each core, and powers of two between.

    >>> [tuple(size) for size in candidates(4)], [tuple(size) for size in candidates(1)]
    ([(1, 1), (1, 4), (2, 2), (4, 1)], [(1, 1)])
    """
    powers = {2**k for k in range(cores.bit_length()) if cores % 2**k == 0}
    return sorted({Candidate(1, 1), *(Candidate(n, cores // n) for n in powers | {cores})})


def runs(among: Sequence[Candidate], words: Sequence[str], folder: Path) -> list[tuple[Candidate, Trial]]:
    """Return the run of each candidate, those first that are most likely the fastest.

    `words` are the script with its arguments, and the flags of ``samestep run`` before it; `folder` is an
    absolute path for the files of the runs.
    """
    last, *rest = sorted(among, reverse=True)
    ordered = [last, *sorted(rest, key=lambda candidate: (candidate.workers, -candidate.threads))]
    trials = []
    for number, case in enumerate(ordered):
        files = folder / f"{number}"
        clock = (f"--clock={files / 'clock'}", f"--clock-steps={STEPS}", f"--clock-warm-up={WARM_UP}")
        trial = Trial(
            number=number,
            workers=case.workers,
            modes=("strong",),
            repeat=0,
            command=("run", *clock, f"--threads={case.threads}", f"--scratch={files / 'scratch'}", *words),
            environment=UNTRACKED,
            folder=files,
        )
        trials.append((case, trial))
    return trials


def measure(
    trials: Sequence[tuple[Candidate, Trial]],
    execute: Callable[[Trial, float], Outcome],
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Execute the runs until the time is over.

    Args:
        trials: the candidates with their runs.
        execute: executes a run in at most that many seconds.
        report: shows what is measured now.
        clock: returns the time in seconds.

    Raises:
        UsageError: all that was executed failed; the message has the reason of the first.
    """
    rates: dict[Candidate, float] = {}
    errors: dict[Candidate, str] = {}
    end = clock() + LIMIT_S
    for case, trial in trials:
        if (left := end - clock()) < _LEAST_S:
            break
        report(f"-n auto: measuring {case}, at most {left:.0f} s")
        outcome = execute(trial, left)
        if outcome.is_late:
            continue
        if outcome.error:
            errors[case] = outcome.error
        else:
            rates[case] = outcome.samples_per_second
    if errors and not rates:
        raise UsageError(f"-n auto: no steps were measured: {next(iter(errors.values()))} Give -n a number.")
    return Measured(rates, errors)


def fastest(among: Sequence[Candidate], measured: Measured) -> Candidate:
    """Return the smallest candidate that is as fast as the fastest, by the rule of a study.

    Without a measurement it is a worker for each core: calls that take longer split are found in the run.
    """
    if not measured.rates:
        return max(among)
    most = max(measured.rates.values())
    return next(candidate for candidate in among if measured.rates.get(candidate, 0.0) * AS_FAST >= most)


def in_words(among: Sequence[Candidate], measured: Measured) -> str:
    """Return the message with the choice and the rates of all candidates."""
    each = (f"{candidate.workers} x {candidate.threads}{_result(candidate, measured)}" for candidate in among)
    return f"-n auto: {fastest(among, measured)} (workers x threads, samples/s: {', '.join(each)})"


def _result(candidate: Candidate, measured: Measured) -> str:
    if candidate in measured.rates:
        return f": {amount(measured.rates[candidate])}"
    return (
        f" failed: {measured.errors[candidate]}"
        if candidate in measured.errors
        else f" not within {LIMIT_S:.0f} s"
    )
