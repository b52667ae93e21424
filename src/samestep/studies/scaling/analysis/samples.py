"""Counts the samples of runs: those that loaders returned, or the rows that models were called with.

A step can call several models with one batch, or one model with all nodes of several graphs, and the first
dimension of a batch can be time. The samples that a loader returned are the batch in all of these cases. But
they need not be the training batch: in some scripts each worker loads the global batch and takes its shard.
If two measures of a batch disagree between few workers and many, the one that shrank with the workers is
right, since only a shard shrinks. So without a loader, the elements of the models' inputs are compared with
their rows. In the same way, an epoch that grows with the workers is none: each worker reads all data.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.studies.scaling.analysis.rank_files import RankFile, Run
from samestep.studies.scaling.analysis.run_steps import kept_steps
from samestep.studies.scaling.analysis.statements import note
from samestep.studies.scaling.analysis.study import Finding

_MOSTLY = 0.9  # the smallest part of all steps with a batch from a loader for which loaders are the measure
SAME_BATCH = 0.02
"""The largest relative difference of equal batches: shards are rounded."""


@dataclass(frozen=True, slots=True)
class _BatchSums:
    """The batches of a run, summed over all its steps and ranks.

    Models were called with rows (`called`) of `elements`; `loaded` is None if not every step has a batch from
    a loader.
    """

    run: Run
    called: float
    loaded: float | None
    elements: float

    def rows_by(self, *, loading: bool) -> float:
        """Return rows per loaded sample, or elements per row; 0 if there are none."""
        if loading:
            return self.called / self.loaded if self.loaded else 0.0
        return self.elements / self.called if self.called else 0.0


def in_samples(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return `runs` with their counted samples, in one unit for all numbers of workers."""
    sums, loading = _measures(runs)
    return tuple(_counted(one, _part(one, sums, loading=loading), loading=loading) for one in sums)


def note_of_samples(runs: Sequence[Run]) -> Finding | None:
    """Return a note on how the samples of `runs` were counted; None if it is obvious."""
    sums, loading = _measures(runs)
    if any(_part(one, sums, loading=loading) != 1 for one in sums):
        return note("shards-of-loaded" if loading else "batch-not-first")
    if loading:
        rows = next((one.rows_by(loading=True) for one in sums), 0.0)
        is_one = not rows or abs(rows - 1) <= SAME_BATCH
        return None if is_one else note("loaded-not-rows", rows=f"{rows:.3g}")
    return None if all(run.kind == "recipe" for run in runs) else note("rows-counted")


def with_epochs(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return `runs` as of `in_samples`, without the samples of an epoch where these grew with the workers."""
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
    for alike in by_variant(runs).values():
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


def by_variant(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return `runs` by variant."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.variant, []).append(run)
    return found


def _measures(runs: Sequence[Run]) -> tuple[list[_BatchSums], bool]:
    """Return the batches of each run, and whether loaders are their measure."""
    sums = list(map(_sums, runs))
    return sums, all(one.loaded is not None for one in sums)


def _sums(run: Run) -> _BatchSums:
    steps = kept_steps(run)
    loaded = [[line.get("loaded") for line in step] for step in steps]
    is_known = bool(steps) and sum(map(any, loaded)) >= _MOSTLY * len(steps)
    is_known = is_known and not any(None in step for step in loaded)
    return _BatchSums(
        run,
        called=_sum(line["samples"] for step in steps for line in step),
        loaded=_sum(size for step in loaded for size in step) if is_known else None,
        elements=_sum(line.get("elements", 0) for step in steps for line in step),
    )


def _part(of: _BatchSums, sums: Sequence[_BatchSums], *, loading: bool) -> float:
    """Return the part of the measured samples that each worker trained on; 1 for all of them."""
    alike = [one for one in sums if one.run.variant == of.run.variant]
    smallest = min(one.run.workers for one in alike)
    times = of.run.workers / smallest
    found = of.rows_by(loading=loading)
    usual = min(one.rows_by(loading=loading) for one in alike if one.run.workers == smallest)
    # The geometric mean of a measure that is constant and one that shrinks with the workers.
    is_part = of.run.kind == "native" and times > 1 and 0 < found < usual * times**-0.5
    return 1 / times if is_part else 1


def _counted(sums: _BatchSums, part: float, *, loading: bool) -> Run:
    run = sums.run
    if not loading and part == 1 and run.kind == "recipe":
        return run

    def line_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
        samples = float(line.get("loaded") or 0) if loading else line["samples"]
        return {**line, "samples": samples * part}

    def end_of(end: Mapping[str, Any]) -> Mapping[str, Any]:
        samples = end.get("samples_per_epoch")
        if samples is not None:
            samples = samples * part if loading or run.kind == "recipe" else None
        return {**end, "samples_per_epoch": samples}

    ranks = [RankFile(rank.header, list(map(line_of, rank.steps)), end_of(rank.end)) for rank in run.ranks]
    return replace(run, ranks=ranks)


def _sum(sizes: Iterable[float | None]) -> float:
    return float(sum(size or 0 for size in sizes))
