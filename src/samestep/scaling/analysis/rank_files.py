"""Reads the files of a clocked run: JSON lines from each of its workers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

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
            _check(row, is_header=number == 1)
        except FormatError as error:
            raise UsageError(f"{path} is damaged: line {number} {error}.") from None
        if rows and "ended" in rows[-1]:
            raise UsageError(f"{path} is damaged: line {number} is after the end.")
        rows.append(row)
    if not rows:
        raise UsageError(f"{path} is empty: its worker ended before its first measured step.")
    end = rows.pop() if "ended" in rows[-1] else {}
    return RankFile(rows[0], rows[1:], end)


def _check(row: object, *, is_header: bool) -> None:
    """Raise `FormatError` if a line lacks names, or has wrong values."""
    kinds, found = _HEADER if is_header else _STEP, row if isinstance(row, dict) else {}
    if "ended" in found and not is_header:
        kinds = _END
    else:
        missing = [name for name in list(kinds)[:_REQUIRED] if name not in found]
        if missing:
            raise FormatError(f"lacks {', '.join(missing)}")
    for name, kind in kinds.items():
        if name in found:
            reader(kind)(found[name], f"has {name}, which")


def is_oversubscribed(headers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the workers of a run compute with more threads than cores, or share an accelerator.

    Workers of one node share the cores in both of their affinity masks; a worker with an unknown mask shares
    with all. A worker that shares no core has the same cores at any number of workers, so it is not counted.
    """
    nodes: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for header in headers:
        nodes.setdefault((header.get("host"), header.get("node")), []).append(header)
    used = [[header["device_id"] for header in node if header.get("device_id")] for node in nodes.values()]
    return any(len(set(one)) < len(one) for one in used) or any(map(_has_shared_cores, nodes.values()))


def _has_shared_cores(headers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether workers that compute on CPUs have too few cores; those on accelerators need few."""
    masks = [
        (header, frozenset(numbers(str(header.get("cpus", "")))))
        for header in headers
        if header.get("device", "cpu") == "cpu"
    ]
    for header, cpus in masks:
        sharing = [other for other, others in masks if not cpus or not others or cpus & others]
        threads = sum(int(other.get("threads") or 1) for other in sharing)
        if len(sharing) > 1 and threads > int(header.get("processors") or threads):
            return True
    return False


def machine(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return each name of `MACHINE` with all values that the workers of `runs` recorded, if there are any."""
    found = {name: _values(runs, field) for name, field in MACHINE.items()}
    return {name: recorded for name, recorded in found.items() if recorded}


def launchers(runs: Sequence[Run]) -> list[str]:
    """Return the launchers that the workers of `runs` recorded."""
    return _values(runs, "launcher")


def recipe(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings of a recipe that are the same in all of `runs`; empty if they are unknown."""
    first, *others = [run.ranks[0].header.get("config") or {} for run in runs] or [{}]
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}


def _values(runs: Sequence[Run], field: str) -> list[Any]:
    """Return the distinct non-empty values of a field of headers, the smallest first."""
    found = {rank.header.get(field) for run in runs for rank in run.ranks}
    return sorted(value for value in found if value not in (None, ""))
