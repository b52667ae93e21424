"""Writes the notes of a study: facts about points and runs that affect how to read its numbers."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from samestep.studies.scaling.analysis.growing_epochs import epoch_of, grown
from samestep.studies.scaling.analysis.point_text import amount, counted, is_communication_hidden
from samestep.studies.scaling.analysis.rank_files import Run
from samestep.studies.scaling.analysis.run_steps import steady_steps
from samestep.studies.scaling.analysis.samples import in_samples, note_of_samples
from samestep.studies.scaling.analysis.speedup import series_of
from samestep.studies.scaling.analysis.study import Finding, Mode, Point

_ALIKE = {
    "kind": "kinds",
    "device": "kinds of device",
    "device_name": "devices",
    "torch": "versions of torch",
    "nccl": "versions of NCCL",
    "driver": "versions of the driver",
    "python": "versions of Python",
}
"""The header fields that the runs of a study should have in common, with their names in a note."""


def note(code: str, words: str, *, workers: Sequence[int] = (), variant: str = "") -> Finding:
    """Return a note; the words begin with its variant, if it has one.

    Args:
        code: of the note.
        words: of the note.
        workers: that it is about; empty for all.
        variant: that it is about; empty for all.
    """
    words = f"{variant}: {words}" if variant else words
    return Finding("note", code, words, tuple(workers), variant=variant)


def notes(points: Sequence[Point]) -> Iterator[Finding]:
    """Yield the notes on related points."""
    for (mode, variant), series in series_of(points).items():
        yield from _of_batch(mode, variant, series)
        yield from _of_workers(variant, series)
    hidden = [point.workers for point in points if is_communication_hidden(point)]
    if hidden:
        words = "Without exposed communication, backward either hides the communication or includes it."
        yield note("communication-hidden", words, workers=sorted(set(hidden)))


def notes_of_runs(runs: Sequence[Run]) -> Iterator[Finding]:
    """Yield the notes on the runs of points: where they ran, and what is not counted."""
    hosts = {tuple(sorted({str(rank.header["host"]) for rank in run.ranks})) for run in runs}
    apart = [one for one in hosts if any(not set(one) & set(other) for other in hosts)]
    if apart:
        names = "; ".join(", ".join(one) for one in sorted(apart))
        words = f"Some runs have no machine in common ({names}), so the speedups include their differences."
        yield note("no-common-host", words)
    for name, plural in _ALIKE.items():
        found = _values(name, runs)
        if len(found) > 1:
            yield note("mixed-runs", f"The runs had several {plural}: {', '.join(found)}.")
    for variant in dict.fromkeys(run.variant for run in runs):
        ways = _values("sync", [run for run in runs if run.variant == variant and run.workers > 1])
        if len(ways) > 1:
            words = f"The runs had several gradient synchronizers: {', '.join(ways)}."
            yield note("mixed-sync", words, variant=variant)
    yield from [note(*found) for found in (note_of_samples(runs),) if found]
    yield from _of_epochs(in_samples(runs))
    yield from _of_evaluations(runs)


def _of_epochs(runs: Sequence[Run]) -> Iterator[Finding]:
    larger = grown(runs)
    for variant in dict.fromkeys(run.variant for run in larger):
        most = max((run for run in larger if run.variant == variant), key=lambda run: run.workers)
        base = min((run for run in runs if run.variant == variant), key=lambda run: run.workers)
        words = (
            f"An epoch of {counted(most.workers)} has {amount(epoch_of(most))} samples, one of "
            f"{counted(base.workers)} {amount(epoch_of(base))}: each worker seems to read the whole data "
            "set, so the time of an epoch is not reported. Add a DistributedSampler if it is missing."
        )
        yield note("epoch-grows", words, workers=(base.workers, most.workers), variant=variant)


def _of_evaluations(runs: Sequence[Run]) -> Iterator[Finding]:
    steps = [(run.workers, steady_steps(run)) for run in in_samples(runs)]
    left_out = sum(one.left_out for _, one in steps)
    if left_out:
        yield note("evaluations-skipped", f"Steps that are not counted due to an evaluation: {left_out}.")
    within = sorted({workers for workers, one in steps if one.with_evaluations})
    if within and all(one.with_evaluations for _, one in steps):
        words = "Most steps have an evaluation, so it is counted as part of the step."
        yield note("evaluations-counted", words, workers=within)
    elif within:
        words = (
            f"At {', '.join(map(counted, within))} most steps have an evaluation, which is counted as part "
            "of the step only there: the rates are not comparable."
        )
        yield note("evaluations-mixed", words, workers=within)


def _values(name: str, runs: Sequence[Run]) -> list[str]:
    """Return the values of a header field; a serial script is one kind on any number of workers."""
    found = {str(rank.header.get(name) or "") for run in runs for rank in run.ranks} - {""}
    return sorted(found - {"serial"} if name == "kind" and "steered" in found else found)


def _of_batch(mode: Mode, variant: str, series: Sequence[Point]) -> Iterator[Finding]:
    batches = ", ".join(
        f"{amount(point.global_batch)} at {counted(point.workers)}" for point in series if point.global_batch
    )
    if mode == "weak" and not batches:
        words = "The work grew with the workers: speedups count work, not runs."
        yield note("work-grew", words, variant=variant)
    elif mode == "weak":
        words = (
            f"The batch grew with the workers ({batches}), which is another training: speedups count samples."
        )
        yield note("batch-grew", words, variant=variant)
    elif mode == "neither":
        words = (
            f"The batch was neither constant nor did it grow with the workers ({batches}): speedups count "
            "samples of different trainings."
        )
        yield note("batch-mixed", words, variant=variant)


def _of_workers(variant: str, series: Sequence[Point]) -> Iterator[Finding]:
    base = series[0]
    if base.workers > 1 and len(series) > 1:
        words = f"Speedups are against {counted(base.workers)}, which count as {base.workers}x."
        yield note("baseline-of-several", words, workers=[base.workers], variant=variant)
    too_many = [point.workers for point in series if point.oversubscribed]
    if too_many:
        words = (
            "Oversubscribed, with more threads than cores or more workers than accelerators: "
            f"{', '.join(map(str, too_many))}. These points are in no fit, no comparison and no advice."
        )
        yield note("oversubscribed", words, workers=too_many, variant=variant)
    once = [point.workers for point in series if len(point.runs) == 1]
    if once:
        several = ", ".join(map(str, once[:-1])) + ", " if once[1:] else ""
        words = f"Run once, so without an interval: {several}{counted(once[-1])}."
        yield note("single-runs", words, workers=once, variant=variant)
    threads: Mapping[int, int] = {point.workers: point.threads for point in series if point.threads}
    if len(set(threads.values())) > 1:
        each = ", ".join(f"{count} at {counted(workers)}" for workers, count in threads.items())
        is_shared = base.device == "cpu" and median(threads.values()) < threads.get(base.workers, 0)
        shared = ", since more workers of one machine share its cores" if is_shared else ""
        words = f"The threads of each worker differ: {each}{shared}."
        yield note("threads-differ", words, workers=list(threads), variant=variant)
