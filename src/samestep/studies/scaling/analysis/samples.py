"""Counts the samples of runs: those that loaders returned, or the rows that models were called with.

A step can call several models with one batch, or one model with all nodes of several graphs, and the first
dimension of a batch can be time. The samples that a loader returned are the batch in all of these cases. But
they need not be the training batch: in some scripts each worker loads the global batch and takes its shard.
If two measures of a batch disagree between few workers and many, the one that shrank with the workers is
right, since only a shard shrinks. So without a loader, the elements of the models' inputs are compared with
their rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.studies.scaling.analysis.rank_files import RankFile, Run
from samestep.studies.scaling.analysis.run_steps import kept_steps

MOSTLY = 0.9
"""The smallest part of all steps with a batch from a loader for which loaders are the measure."""
SAME_BATCH = 0.02
"""The largest relative difference of equal batches: shards are rounded."""


@dataclass(frozen=True, slots=True)
class _BatchSums:
    """The batches of a run, summed over all its steps and ranks."""

    run: Run
    called: float
    """Rows that models were called with."""
    loaded: float | None
    """Samples from loaders; None if not every step has a batch from one."""
    elements: float
    """Elements that models were called with."""

    @property
    def kind(self) -> str:
        """The kind of training."""
        return str(self.run.ranks[0].header["kind"])

    def rows_by(self, *, loading: bool) -> float:
        """Return rows per loaded sample, or elements per row; 0 if there are none."""
        if loading:
            return self.called / self.loaded if self.loaded else 0.0
        return self.elements / self.called if self.called else 0.0


def in_samples(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return `runs` with their counted samples, in one unit for all numbers of workers."""
    sums = list(map(_sums, runs))
    loading = _is_loading(sums)
    return tuple(_counted(one, _part(one, sums, loading=loading), loading=loading) for one in sums)


def note_of_samples(runs: Sequence[Run]) -> tuple[str, str] | None:
    """Return code and words of a note on how the samples of `runs` were counted; None if it is obvious."""
    sums = list(map(_sums, runs))
    loading = _is_loading(sums)
    has_parts = any(_part(one, sums, loading=loading) != 1 for one in sums)
    if loading and has_parts:
        return "shards-of-loaded", (
            "Each worker loads the global batch and trains on its shard, whose samples are counted."
        )
    if loading:
        rows = next((one.rows_by(loading=True) for one in sums), 0.0)
        if not rows or abs(rows - 1) <= SAME_BATCH:
            return None
        return "loaded-not-rows", (
            f"Samples are those that were loaded. Models were called with {rows:.3g} rows for each: a step "
            "calls them several times, or their first dimension is not the batch."
        )
    if has_parts:
        return "batch-not-first", (
            "With more workers, models were called with fewer elements in the same number of rows: the first "
            "dimension is not the batch. The batch was constant, and its unit is rows at the baseline."
        )
    if all(one.kind == "recipe" for one in sums):
        return None
    return "rows-counted", (
        "No DataLoader returned the batch of each step: samples are the rows that models were called with, "
        "in all calls of a step, and the length of an epoch is unknown."
    )


def _sums(run: Run) -> _BatchSums:
    steps = kept_steps(run)
    loaded = [[line.get("loaded") for line in step] for step in steps]
    given = sum(any(step) for step in loaded)
    is_known = bool(steps) and given >= MOSTLY * len(steps) and all(None not in step for step in loaded)
    return _BatchSums(
        run,
        called=_sum(line["samples"] for step in steps for line in step),
        loaded=_sum(size for step in loaded for size in step) * _shard(run) if is_known else None,
        elements=_sum(line.get("elements", 0) for step in steps for line in step),
    )


def _is_loading(sums: Sequence[_BatchSums]) -> bool:
    return all(one.loaded is not None for one in sums)


def _part(of: _BatchSums, sums: Sequence[_BatchSums], *, loading: bool) -> float:
    """Return the part of the measured samples that each worker trained on; 1 for all of them."""
    alike = [one for one in sums if one.run.variant == of.run.variant]
    smallest = min(one.run.workers for one in alike)
    grown = of.run.workers / smallest
    found = of.rows_by(loading=loading)
    usual = min(one.rows_by(loading=loading) for one in alike if one.run.workers == smallest)
    # The geometric mean of a measure that is constant and one that shrinks with the workers.
    is_part = of.kind == "native" and grown > 1 and 0 < found < usual * grown**-0.5
    return 1 / grown if is_part else 1


def _counted(sums: _BatchSums, part: float, *, loading: bool) -> Run:
    run = sums.run
    if not loading and part == 1 and sums.kind == "recipe":
        return run

    def line_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
        samples = float(line.get("loaded") or 0) * _shard(run) if loading else line["samples"]
        return {**line, "samples": samples * part}

    def end_of(end: Mapping[str, Any]) -> Mapping[str, Any]:
        samples = end.get("samples_per_epoch")
        if samples is None or not (loading or sums.kind == "recipe"):
            return {**end, "samples_per_epoch": None}
        return {**end, "samples_per_epoch": samples * part}

    ranks = [RankFile(rank.header, list(map(line_of, rank.steps)), end_of(rank.end)) for rank in run.ranks]
    return replace(run, ranks=ranks)


def _shard(run: Run) -> float:
    """Return the part of its loaded samples that a worker trains on: a replicated script loads all."""
    return 1 / run.workers if run.ranks[0].header["kind"] == "steered" else 1


def _sum(sizes: Iterable[float | None]) -> float:
    return float(sum(size or 0 for size in sizes))
