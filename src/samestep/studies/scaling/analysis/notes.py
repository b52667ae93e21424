"""Selects the notes of a study: facts about points and runs that affect how to read its numbers."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from samestep.studies.scaling.analysis.point_text import amount, counted, is_communication_hidden
from samestep.studies.scaling.analysis.rank_files import Run
from samestep.studies.scaling.analysis.run_steps import steady_steps
from samestep.studies.scaling.analysis.samples import by_variant, epoch_of, grown, in_samples, note_of_samples
from samestep.studies.scaling.analysis.speedup import series_of
from samestep.studies.scaling.analysis.statements import note
from samestep.studies.scaling.analysis.study import Finding, Mode, Point

# The header fields that the runs of a study should have in common, with their names in a note.
_ALIKE = {
    "kind": "kinds",
    "device": "kinds of device",
    "device_name": "devices",
    "torch": "versions of torch",
    "nccl": "versions of NCCL",
    "driver": "versions of the driver",
    "python": "versions of Python",
}


def notes(points: Sequence[Point]) -> Iterator[Finding]:
    """Yield the notes on related points."""
    for (mode, variant), series in series_of(points).items():
        yield from _of_batch(mode, variant, series)
        yield from _of_workers(variant, series)
    hidden = {point.workers for point in points if is_communication_hidden(point)}
    if hidden:
        yield note("communication-hidden", sorted(hidden))


def notes_of_runs(runs: Sequence[Run]) -> Iterator[Finding]:
    """Yield the notes on the runs of points: where they ran, and what is not counted."""
    hosts = {tuple(sorted({str(rank.header["host"]) for rank in run.ranks})) for run in runs}
    apart = [one for one in hosts if any(not set(one) & set(other) for other in hosts)]
    if apart:
        yield note("no-common-host", hosts="; ".join(", ".join(one) for one in sorted(apart)))
    for name, plural in _ALIKE.items():
        found = _values(name, runs)
        if len(found) > 1:
            yield note("mixed-runs", things=plural, values=", ".join(found))
    for variant, alike in by_variant(runs).items():
        ways = _values("sync", [run for run in alike if run.workers > 1])
        if len(ways) > 1:
            yield note("mixed-sync", variant=variant, values=", ".join(ways))
    if (of_samples := note_of_samples(runs)) is not None:
        yield of_samples
    yield from _of_epochs(in_samples(runs))
    yield from _of_evaluations(runs)


def _of_epochs(runs: Sequence[Run]) -> Iterator[Finding]:
    all_runs = by_variant(runs)
    for variant, larger in by_variant(grown(runs)).items():
        base = min(all_runs[variant], key=lambda run: run.workers)
        most = max(larger, key=lambda run: run.workers)
        yield note(
            "epoch-grows",
            [base.workers, most.workers],
            variant=variant,
            n=counted(most.workers),
            samples=amount(epoch_of(most)),
            base=counted(base.workers),
            fewer=amount(epoch_of(base)),
        )


def _of_evaluations(runs: Sequence[Run]) -> Iterator[Finding]:
    steps = [(run.workers, steady_steps(run)) for run in in_samples(runs)]
    left_out = sum(one.left_out for _, one in steps)
    if left_out:
        yield note("evaluations-skipped", count=left_out)
    within = sorted({workers for workers, one in steps if one.with_evaluations})
    if within:
        is_all = all(one.with_evaluations for _, one in steps)
        code = "evaluations-counted" if is_all else "evaluations-mixed"
        yield note(code, within, counts=", ".join(map(counted, within)))


def _values(name: str, runs: Sequence[Run]) -> list[str]:
    """Return the values of a header field; a serial script is one kind on any number of workers."""
    found = {str(rank.header.get(name) or "") for run in runs for rank in run.ranks} - {""}
    return sorted(found - {"serial"} if name == "kind" and found & {"once", "replicated"} else found)


def _of_batch(mode: Mode, variant: str, series: Sequence[Point]) -> Iterator[Finding]:
    batches = ", ".join(
        f"{amount(point.global_batch)} at {counted(point.workers)}" for point in series if point.global_batch
    )
    if mode != "strong":
        code = "batch-mixed" if mode == "neither" else "batch-grew" if batches else "work-grew"
        yield note(code, variant=variant, batches=batches)


def _of_workers(variant: str, series: Sequence[Point]) -> Iterator[Finding]:
    base = series[0]
    n = counted(base.workers)
    if base.workers > 1 and len(series) > 1:
        yield note("baseline-of-several", [base.workers], variant=variant, n=n, base=base.workers)
    too_many = [point.workers for point in series if point.oversubscribed]
    if too_many:
        yield note("oversubscribed", too_many, variant=variant, counts=", ".join(map(str, too_many)))
    once = [point.workers for point in series if len(point.runs) == 1]
    if once:
        counts = ", ".join([*map(str, once[:-1]), counted(once[-1])])
        yield note("single-runs", once, variant=variant, counts=counts)
    threads: Mapping[int, int] = {point.workers: point.threads for point in series if point.threads}
    if len(set(threads.values())) > 1:
        counts = ", ".join(f"{count} at {counted(workers)}" for workers, count in threads.items())
        is_shared = base.device == "cpu" and median(threads.values()) < threads.get(base.workers, 0)
        shared = ", since more workers of one machine share its cores" if is_shared else ""
        yield note("threads-differ", list(threads), variant=variant, counts=counts, shared=shared)
