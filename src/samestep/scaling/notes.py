"""What a reader must know besides the figures."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from samestep.scaling.epochs import epoch_of, grown
from samestep.scaling.rank_files import Run
from samestep.scaling.relate import series_of
from samestep.scaling.samples import in_samples, note_of_samples
from samestep.scaling.steps import steady
from samestep.scaling.study import Mode, Point
from samestep.scaling.words import amount, counted, exchange_within_backward

_ALIKE = {
    "kind": "kinds",
    "device": "kinds of device",
    "device_name": "devices",
    "torch": "versions of torch",
    "nccl": "versions of NCCL",
    "driver": "versions of the driver",
    "python": "versions of Python",
}
"""What the runs of a study should have alike, and what that is called."""


def notes(points: Sequence[Point]) -> tuple[str, ...]:
    """Return what is to be said about related points."""
    said: list[str] = []
    for (mode, variant), series in series_of(points).items():
        prefix = f"{variant}: " if variant else ""
        said += [prefix + note for note in (*_of_batch(mode, series), *_of_workers(series))]
    if any(exchange_within_backward(point) for point in points):
        said.append("Where no exchange was waited for, it is hidden by backward or cannot be told from it.")
    return tuple(dict.fromkeys(said))


def notes_of_runs(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what is to be said about the runs that points come from: where they ran, what was left out."""
    said = []
    hosts = {tuple(sorted({str(rank.header["host"]) for rank in run.ranks})) for run in runs}
    apart = [one for one in hosts if any(not set(one) & set(other) for other in hosts)]
    if apart:
        said.append(
            f"Some runs have no machine in common ({'; '.join(', '.join(one) for one in sorted(apart))}): "
            "what differs between these is in the speedups too."
        )
    for name, words in _ALIKE.items():
        found = _found(name, runs)
        if len(found) > 1:
            said.append(f"The runs had several {words}: {', '.join(found)}.")
    for variant in dict.fromkeys(run.variant for run in runs):
        ways = _found("sync", [run for run in runs if run.variant == variant and run.workers > 1])
        if len(ways) > 1:
            prefix = f"{variant}: " if variant else ""
            said.append(f"{prefix}The runs exchanged gradients in several ways: {', '.join(ways)}.")
    said += filter(None, [note_of_samples(runs)])
    return (*said, *_of_epochs(in_samples(runs)), *_of_evaluations(runs))


def _of_epochs(runs: Sequence[Run]) -> Iterator[str]:
    larger = grown(runs)
    for variant in dict.fromkeys(run.variant for run in larger):
        most = max((run for run in larger if run.variant == variant), key=lambda run: run.workers)
        base = min((run for run in runs if run.variant == variant), key=lambda run: run.workers)
        prefix = f"{variant}: " if variant else ""
        yield (
            f"{prefix}An epoch of {counted(most.workers)} has {amount(epoch_of(most))} samples, one of "
            f"{counted(base.workers)} {amount(epoch_of(base))}: each worker seems to read the whole data "
            "set, so what an epoch of several takes is not told. Is a DistributedSampler missing?"
        )


def _of_evaluations(runs: Sequence[Run]) -> Iterator[str]:
    steps = [(run.workers, steady(run)) for run in in_samples(runs)]
    left_out = sum(one.left_out for _, one in steps)
    if left_out:
        yield f"Steps left out, since there was an evaluation in them: {left_out}."
    within = sorted({workers for workers, one in steps if one.with_evaluations})
    if not within:
        return
    if all(one.with_evaluations for _, one in steps):
        yield "There is an evaluation in most steps: it is a part of them, and of their time."
    else:
        yield (
            f"At {', '.join(map(counted, within))} most steps have an evaluation, which is a part of them "
            "there and not elsewhere: these rates are not alike."
        )


def _found(name: str, runs: Sequence[Run]) -> list[str]:
    """Return the values of a field of the headers; a serial script is one kind on any number of workers."""
    told = {str(rank.header.get(name) or "") for run in runs for rank in run.ranks} - {""}
    return sorted(told - {"serial"} if name == "kind" and "steered" in told else told)


def _of_batch(mode: Mode, series: Sequence[Point]) -> Iterator[str]:
    batches = ", ".join(
        f"{amount(point.global_batch)} at {counted(point.workers)}" for point in series if point.global_batch
    )
    if mode == "weak" and not batches:
        yield "The work grew with the workers: speedups count work, not runs."
    elif mode == "weak":
        yield f"The batch grew with the workers ({batches}): another training; speedups count samples."
    if mode == "neither":
        yield (
            f"The batch neither stayed nor grew with the workers ({batches}): "
            "speedups count samples, of trainings that differ."
        )


def _of_workers(series: Sequence[Point]) -> Iterator[str]:
    base = series[0]
    if base.workers > 1 and len(series) > 1:
        yield f"Speedups are against {counted(base.workers)}, which count as {base.workers}x."
    too_many = [str(point.workers) for point in series if point.oversubscribed]
    if too_many:
        yield (
            f"Oversubscribed, with fewer cores than the threads of all workers, or fewer accelerators than "
            f"workers: {', '.join(too_many)}. These points are in no fit, no comparison and no advice."
        )
    once = [point.workers for point in series if len(point.runs) == 1]
    if once:
        several = ", ".join(map(str, once[:-1])) + ", " if once[1:] else ""
        yield f"Run once, so without an interval: {several}{counted(once[-1])}."
    threads: Mapping[int, int] = {point.workers: point.threads for point in series if point.threads}
    if len(set(threads.values())) > 1:
        each = ", ".join(f"{count} at {counted(workers)}" for workers, count in threads.items())
        shared = (
            ": more workers of one machine share the cores that fewer had"
            if base.device == "cpu" and median(threads.values()) < threads.get(base.workers, 0)
            else ""
        )
        yield f"Threads of each worker differ, {each}{shared}."
