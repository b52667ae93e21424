"""Reads the runs of a study: the files of their workers, and the rates, phases and waiting of their steps.

A step can call several models with one batch, or one model with all nodes of several graphs, and the first
dimension of a batch can be time. The samples that a loader returned are the batch in all of these cases. But
they need not be the training batch: in some scripts each worker loads the global batch and takes its shard.
If two measures of a batch disagree between few workers and many, the one that shrank with the workers is
right, since only a shard shrinks. So without a loader, the elements of the models' inputs are compared with
their rows. In the same way, an epoch that grows with the workers is none: each worker reads all data.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Annotated, Any, TypeAlias

from samestep.base import units
from samestep.base.documents import (
    FormatError,
    NotNegative,
    PositiveInt,
    WholeNumber,
    read_json_lines,
    reader,
)
from samestep.base.errors import UsageError
from samestep.base.machine.description import numbers
from samestep.base.step_phases import ALL
from samestep.scaling.analysis.study import PHASES, Span

# A list of processors in the notation of the Linux kernel.
_CPUS = re.compile(r"(\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*)?")


def _no_cpus(text: str) -> str:
    return "" if _CPUS.fullmatch(text) else "is not a list of processors"


_HEADER: Mapping[str, Any] = {
    "rank": WholeNumber,
    "size": PositiveInt,
    **dict.fromkeys(("kind", "host"), str),
    **dict.fromkeys(("node", "warm_up", "memory_bytes"), WholeNumber | None),
    **dict.fromkeys(("nodes", "threads", "processors", "node_processors"), PositiveInt | None),
    **dict.fromkeys(("device", "device_id", "device_name", "processor", "backend", "sync"), str | None),
    **dict.fromkeys(("launcher", "system", "torch", "cuda", "hip", "nccl", "driver"), str | None),
    **dict.fromkeys(("python", "samestep"), str | None),
    "cpus": Annotated[str, _no_cpus],
    "argv": tuple[str, ...],
    "config": Mapping[str, Any] | None,
}
_STEP: Mapping[str, Any] = {
    "step": WholeNumber,
    **dict.fromkeys(("at", "seconds"), float),
    "samples": NotNegative,
    **dict.fromkeys(ALL, float),  # negative if a device has several queues, whose events are not ordered
    "loaded": NotNegative | None,
    "elements": NotNegative,
    "exchange_bytes": WholeNumber | None,
    "evaluated": bool,
}
_END: Mapping[str, Any] = {
    **dict.fromkeys(("ended", "message"), str),
    "made": WholeNumber,
    **dict.fromkeys(("peak_memory_bytes", "peak_device_bytes"), WholeNumber | None),
    "samples_per_epoch": NotNegative | None,
}
_REQUIRED = 4  # the first names of a header and of a step's line are required
MACHINE = {
    "hosts": "host",
    "devices": "device_name",
    "processor": "processor",
    "node_processors": "node_processors",
    "memory_bytes": "memory_bytes",
    "exchange": "backend",
    **{name: name for name in ("system", "torch", "cuda", "hip", "nccl", "driver", "python", "samestep")},
}
"""The names of a study's `machine`, each with its field in a worker's header."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """The file of one worker: its header, a line for each measured step, and its last line.

    The last line is empty if the worker ended before it was written.
    """

    header: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: a repeat of a number of workers.

    It has the files of its workers by rank, and is oversubscribed if these had fewer cores than threads, or
    shared an accelerator. One worker can have the cores of several (`cores_of`).
    """

    ranks: Sequence[RankFile]
    variant: str = ""
    cores_of: int = 1
    oversubscribed: bool = False

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.ranks) if self.kind != "once" else int(self.ranks[0].header["size"])

    @property
    def threads(self) -> int | None:
        """The number of threads of each worker; None if unknown."""
        return self.ranks[0].header.get("threads")

    @property
    def device(self) -> str:
        """The kind of device of the workers, such as ``cpu``."""
        return str(self.ranks[0].header.get("device", "cpu"))

    @property
    def kind(self) -> str:
        """The kind of training that the first rank recorded."""
        return str(self.ranks[0].header["kind"])


def read_ranks(folder: Path) -> list[RankFile]:
    """Return the files of a run's workers in `folder`, by rank.

    An incomplete last line, as of a killed worker, is ignored.

    Raises:
        UsageError: there is no file, one is damaged or cannot be read, or that of a worker is missing.
    """
    files = [_read(path) for path in folder.glob("rank-*.jsonl")]
    if not files:
        raise UsageError(f"{folder} holds no rank-0.jsonl: no step was measured there.")
    files.sort(key=lambda file: file.header["rank"])
    ranks, size = [file.header["rank"] for file in files], files[0].header["size"]
    recording = 1 if files[0].header["kind"] == "once" else size
    if len(ranks) != recording or ranks != list(range(len(ranks))):
        there = ", ".join(map(str, ranks))
        raise UsageError(f"{folder} holds the files of ranks {there}, of a run of {size} workers.")
    return files


def _read(path: Path) -> RankFile:
    try:
        lines = list(read_json_lines(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None
    rows: list[Mapping[str, Any]] = []
    for number, row in lines:
        try:
            check_row(row, is_header=number == 1)
        except FormatError as error:
            raise UsageError(f"{path} is damaged: line {number} {error}.") from None
        if rows and "ended" in rows[-1]:
            raise UsageError(f"{path} is damaged: line {number} is after the end.")
        rows.append(row)
    if not rows:
        raise UsageError(f"{path} is empty: its worker ended before its first measured step.")
    end = rows.pop() if "ended" in rows[-1] else {}
    return RankFile(rows[0], rows[1:], end)


def check_row(row: object, *, is_header: bool) -> None:
    """Raise `FormatError` if a line of a worker's file lacks names, or has wrong values."""
    kinds, fields = _HEADER if is_header else _STEP, row if isinstance(row, dict) else {}
    if "ended" in fields and not is_header:
        kinds = _END
    else:
        missing = [name for name in list(kinds)[:_REQUIRED] if name not in fields]
        if missing:
            raise FormatError(f"lacks {', '.join(missing)}")
    for name, kind in kinds.items():
        if name in fields:
            reader(kind)(fields[name], f"has {name}, which")


def is_oversubscribed(headers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the workers of a run compute with more threads than cores, or share an accelerator.

    Workers of one node share the cores in both of their affinity masks; a worker with an unknown mask shares
    with all. A worker that shares no core has the same cores at any number of workers, so it is not counted.
    """
    nodes: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for header in headers:
        nodes.setdefault((header.get("host"), header.get("node")), []).append(header)
    used = [[header["device_id"] for header in node if header.get("device_id")] for node in nodes.values()]
    return any(len(set(identifiers)) < len(identifiers) for identifiers in used) or any(
        map(_has_shared_cores, nodes.values())
    )


def _has_shared_cores(headers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether workers that compute on CPUs have too few cores; those on accelerators need few."""
    masks = [
        (header, frozenset(numbers(str(header.get("cpus", "")))))
        for header in headers
        if header.get("device", "cpu") == "cpu"
    ]
    for header, cpus in masks:
        sharing = [header for header, mask in masks if not cpus or not mask or cpus & mask]
        threads = sum(int(header.get("threads") or 1) for header in sharing)
        if len(sharing) > 1 and threads > int(header.get("processors") or threads):
            return True
    return False


def machine(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return each name of `MACHINE` with all values that the workers of `runs` recorded, if there are any."""
    recorded = {name: _values(runs, field) for name, field in MACHINE.items()}
    return {name: values for name, values in recorded.items() if values}


def launchers(runs: Sequence[Run]) -> list[str]:
    """Return the launchers that the workers of `runs` recorded."""
    return _values(runs, "launcher")


def recipe(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings of a recipe that are the same in all of `runs`; empty if they are unknown."""
    first, *configs = [run.ranks[0].header.get("config") or {} for run in runs] or [{}]
    return {
        name: value for name, value in first.items() if all(config.get(name) == value for config in configs)
    }


def _values(runs: Sequence[Run], field: str) -> list[Any]:
    """Return the distinct non-empty values of a field of headers, the smallest first."""
    values = {rank.header.get(field) for run in runs for rank in run.ranks}
    return sorted(value for value in values if value not in (None, ""))


Step: TypeAlias = Sequence[Mapping[str, Any]]
"""The records of one step, by rank."""

# The order of phases on a time line; a script's other work is mostly before its batch.
_DRAWN = ("other", "data", "to_device", "forward", "backward", "exposed_sync", "optimizer")

_MOSTLY = 0.9  # the smallest part of all steps with a batch from a loader for which loaders are the measure
SAME_BATCH = 0.02
"""The largest relative difference of equal batches: shards are rounded."""


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """The counted steps of a run."""

    steps: Sequence[Step]

    @property
    def global_batch(self) -> float:
        """Samples of a step on all ranks: the median, since the last batch of an epoch can be smaller.

        The mean if that is 0, because several steps update the weights with one batch.
        """
        samples = [_samples(step) for step in self.steps]
        return float(median(samples)) or fmean(samples)

    @property
    def seconds(self) -> float:
        """Seconds of all counted steps on the slowest rank."""
        by_rank = zip(*self.steps, strict=True)
        return float(max(sum(line["seconds"] for line in lines) for lines in by_rank))

    @property
    def samples_per_second(self) -> float:
        """The samples of all counted steps divided by their time."""
        return sum(_samples(step) for step in self.steps) / self.seconds

    @property
    def exchange_s(self) -> float:
        """Seconds of a step in which all ranks waited: the communication itself, not a wait for a rank."""
        return fmean(min(_synced(line) for line in step) for step in self.steps)

    @property
    def waiting_s(self) -> float:
        """Seconds of a step in which a rank waited for other ranks, the mean over ranks."""
        return fmean(fmean(_synced(line) for line in step) for step in self.steps) - self.exchange_s

    @property
    def exchange_bytes(self) -> int | None:
        """Gradient bytes that a rank sends in a step: the median; None if a record has none."""
        sizes = [line.get("exchange_bytes") or 0 for step in self.steps for line in step]
        return int(median_low(sizes)) if all(sizes) and len(self.steps[0]) > 1 else None

    def phases(self) -> list[dict[str, float]]:
        """Return the mean seconds of each phase, for each rank."""
        return [
            {name: max(0.0, fmean(line.get(name, 0.0) for line in lines)) for name in PHASES}
            for lines in zip(*self.steps, strict=True)
        ]

    def timeline(self) -> tuple[tuple[Span, ...], ...]:
        """Return a step of median length: for each rank its phases in sequence.

        Ranks are aligned at the end of the communication, which all of them leave at the same time. The
        recorded start times are not used: the clocks of hosts differ, and other work, which is drawn first,
        can be at either end of a step.
        """
        seconds = [max(line["seconds"] for line in step) for step in self.steps]
        step = self.steps[seconds.index(median_low(seconds))]
        begins = [-sum(line.get(name, 0.0) for name in _DRAWN[:-1]) for line in step]
        return tuple(
            tuple(_spans(line, begin - min(begins))) for line, begin in zip(step, begins, strict=True)
        )


def steady_steps(run: Run) -> SteadySteps:
    """Return the counted steps of `run`, see `kept_steps`.

    Raises:
        UsageError: there are none.
    """
    steps, kept = _common(run), kept_steps(run)
    counted = SteadySteps(kept)
    why = ""
    if not steps:
        ended = next((rank.end["message"] for rank in run.ranks if rank.end.get("message")), "")
        why = f"it ended before all ranks completed a measured step{f' ({ended})' if ended else ''}"
    elif not any(map(_samples, kept)):
        why = "its steps have no samples"
    elif counted.seconds <= 0:
        why = "the recorded time of its steps is 0"
    if why:
        workers = units.counted(run.workers, "worker")
        raise UsageError(f"the run on {workers} has no step that can be counted: {why}.")
    return counted


def kept_steps(run: Run) -> list[Step]:
    """Return the steps of `run` that all ranks recorded and in which no rank evaluated.

    If most steps have an evaluation, it is part of the training (an agent that acts before it learns), and
    all steps are returned.
    """
    steps = _common(run)
    without = [step for step in steps if not any(line.get("evaluated") for line in step)]
    return without if 2 * len(without) >= len(steps) else steps


def _common(run: Run) -> list[Step]:
    by_rank = [{line["step"]: line for line in rank.steps} for rank in run.ranks]
    numbers = sorted(set.intersection(*(set(lines) for lines in by_rank)))
    return [[lines[number] for lines in by_rank] for number in numbers]


def _samples(step: Step) -> float:
    return float(sum(line["samples"] for line in step))


def _synced(line: Mapping[str, Any]) -> float:
    return float(line.get("exposed_sync", 0.0))


def _spans(line: Mapping[str, Any], begin: float) -> list[Span]:
    spans = []
    for name in _DRAWN:
        length = float(line.get(name, 0.0))
        if length > 0:
            spans.append(Span(name, begin, begin + length))
            begin += length
    return spans


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
    sums = list(map(_sums, runs))
    loading = all(batches.loaded is not None for batches in sums)  # then loaders are the measure of all runs
    return tuple(
        _counted(batches, _part(batches, sums, loading=loading), loading=loading) for batches in sums
    )


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
    larger = []
    for group in by_variant(runs).values():
        smallest = min(run.workers for run in group)
        usual = max(epoch_of(run) for run in group if run.workers == smallest)
        for run in group:
            times = run.workers / smallest
            # The geometric mean of an epoch that is constant and one that grows with the workers.
            if times > 1 and usual and epoch_of(run) > usual * times**0.5:
                larger.append(run)
    return larger


def epoch_of(run: Run) -> float:
    """Return the samples of an epoch on all workers together; 0 if unknown."""
    return max((float(rank.end.get("samples_per_epoch") or 0) for rank in run.ranks), default=0.0)


def by_variant(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return `runs` by variant."""
    variants: dict[str, list[Run]] = {}
    for run in runs:
        variants.setdefault(run.variant, []).append(run)
    return variants


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
    group = [batches for batches in sums if batches.run.variant == of.run.variant]
    smallest = min(batches.run.workers for batches in group)
    times = of.run.workers / smallest
    rows = of.rows_by(loading=loading)
    usual = min(batches.rows_by(loading=loading) for batches in group if batches.run.workers == smallest)
    # The geometric mean of a measure that is constant and one that shrinks with the workers.
    is_part = of.run.kind == "native" and times > 1 and 0 < rows < usual * times**-0.5
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
