"""Which samples count: those that loaders gave, or the rows that models were called with.

A step may call several models with one batch, or one model with all nodes of several graphs, and the first
dimension of a batch may be time. What a loader drew is the batch in all of these. But it need not be what was
trained on: each worker of some scripts loads the whole batch and takes its part. Of two measures of one batch
that disagree between few workers and many, the one that shrank with the workers is right, since nothing but a
share does. So where no loader tells, the numbers in what models were called with are held against its rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.scaling.rank_files import RankFile, Run
from samestep.scaling.steps import kept_steps

MOSTLY = 0.9
"""The part of all steps that must have a batch from a loader, for such batches to be what a step takes."""
SAME_BATCH = 0.02
"""By how much batches may differ and still be the same: shares are rounded."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of the batches of a run: the sums over all its steps and ranks."""

    run: Run
    called: float
    """Rows."""
    loaded: float | None
    """Samples; None where loaders did not give every step its batch."""
    elements: float

    @property
    def kind(self) -> str:
        """Who trains."""
        return str(self.run.ranks[0].header["kind"])

    def rows_by(self, *, loading: bool) -> float:
        """Return the rows of a sample that was loaded, or the numbers in a row; 0 where there are none."""
        if loading:
            return self.called / self.loaded if self.loaded else 0.0
        return self.elements / self.called if self.called else 0.0


def in_samples(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return `runs` with the samples that count, in one unit on all numbers of workers."""
    seen = list(map(_seen, runs))
    loading = _is_loading(seen)
    return tuple(_counted(one, _part(one, seen, loading=loading), loading=loading) for one in seen)


def note_of_samples(runs: Sequence[Run]) -> str:
    """Return what is to be said of how the samples of `runs` were counted; empty for nothing."""
    seen = list(map(_seen, runs))
    loading = _is_loading(seen)
    has_parts = any(_part(one, seen, loading=loading) != 1 for one in seen)
    if loading and has_parts:
        return "Each worker loads whole batches and trains on its part of them: the parts are counted."
    if loading:
        rows = next((one.rows_by(loading=True) for one in seen), 0.0)
        if not rows or abs(rows - 1) <= SAME_BATCH:
            return ""
        return (
            f"Samples are those that were loaded. Models were called with {rows:.3g} rows for each: a step "
            "calls them several times, or their first dimension is not the batch."
        )
    if has_parts:
        return (
            "The more workers there were, the fewer numbers each one's models were called with, in as many "
            "rows: the first dimension is not the batch, which stayed, and is given in rows of the fewest "
            "workers."
        )
    if all(one.kind == "recipe" for one in seen):
        return ""
    return (
        "No DataLoader gave each step its batch: samples are the rows that models were called with, in all "
        "calls of a step, and an epoch is not known."
    )


def _seen(run: Run) -> _Seen:
    steps = kept_steps(run)
    loaded = [[line.get("loaded") for line in step] for step in steps]
    given = sum(any(step) for step in loaded)
    is_known = bool(steps) and given >= MOSTLY * len(steps) and all(None not in step for step in loaded)
    return _Seen(
        run,
        called=_sum(line["samples"] for step in steps for line in step),
        loaded=_sum(size for step in loaded for size in step) * _own(run) if is_known else None,
        elements=_sum(line.get("elements", 0) for step in steps for line in step),
    )


def _is_loading(seen: Sequence[_Seen]) -> bool:
    return all(one.loaded is not None for one in seen)


def _part(of: _Seen, seen: Sequence[_Seen], *, loading: bool) -> float:
    """Return which part of what would be counted is of the workers' own batches; 1 where all of it is."""
    alike = [one for one in seen if one.run.variant == of.run.variant]
    fewest = min(one.run.workers for one in alike)
    grown = of.run.workers / fewest
    found = of.rows_by(loading=loading)
    usual = min(one.rows_by(loading=loading) for one in alike if one.run.workers == fewest)
    # Half way, on a scale of ratios, between what stayed as it was and what shrank with the workers.
    is_part = of.kind == "native" and grown > 1 and 0 < found < usual * grown**-0.5
    return 1 / grown if is_part else 1


def _counted(seen: _Seen, part: float, *, loading: bool) -> Run:
    run = seen.run
    if not loading and part == 1 and seen.kind == "recipe":
        return run

    def line_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
        samples = float(line.get("loaded") or 0) * _own(run) if loading else line["samples"]
        return {**line, "samples": samples * part}

    def end_of(end: Mapping[str, Any]) -> Mapping[str, Any]:
        samples = end.get("samples_per_epoch")
        if samples is None or not (loading or seen.kind == "recipe"):
            return {**end, "samples_per_epoch": None}
        return {**end, "samples_per_epoch": samples * part}

    ranks = [RankFile(rank.header, list(map(line_of, rank.steps)), end_of(rank.end)) for rank in run.ranks]
    return replace(run, ranks=ranks)


def _own(run: Run) -> float:
    """Return which part of what a worker loads is its own: a serial script's all load the whole batch."""
    return 1 / run.workers if run.ranks[0].header["kind"] == "steered" else 1


def _sum(sizes: Iterable[float | None]) -> float:
    return float(sum(size or 0 for size in sizes))
