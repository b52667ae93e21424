"""Detects epochs that grow with the workers, because each worker reads the whole data set."""

from collections.abc import Sequence
from dataclasses import replace

from samestep.studies.scaling.analysis.rank_files import Run


def with_epochs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return `runs`, without the samples of an epoch for runs in which these grew with the workers.

    Args:
        runs: as `samestep.studies.scaling.analysis.samples.in_samples` returns them.
    """
    larger = {id(run) for run in grown(runs)}
    return tuple(
        replace(run, ranks=[replace(rank, end={**rank.end, "samples_per_epoch": None}) for rank in run.ranks])
        if id(run) in larger
        else run
        for run in runs
    )


def grown(runs: Sequence[Run]) -> list[Run]:
    """Return those of `runs` whose epoch has far more samples than that of the baseline."""
    found = []
    for variant in dict.fromkeys(run.variant for run in runs):
        alike = [run for run in runs if run.variant == variant]
        smallest = min(run.workers for run in alike)
        usual = max(epoch_of(run) for run in alike if run.workers == smallest)
        for run in alike:
            times = run.workers / smallest
            # The geometric mean of an epoch that is constant and one that grows with the workers.
            if times > 1 and usual and epoch_of(run) > usual * times**0.5:
                found.append(run)
    return found


def epoch_of(run: Run) -> float:
    """Return the samples of an epoch on all workers together; 0 if unknown."""
    return max((float(rank.end.get("samples_per_epoch") or 0) for rank in run.ranks), default=0.0)
