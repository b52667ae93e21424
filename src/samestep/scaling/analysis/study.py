"""Defines a scaling study, and reads and writes it: measurements at each number of workers, and a verdict.

The classes are the objects of ``study.json``; the reference has a table of their fields.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from samestep.base import step_phases
from samestep.base.documents import FormatError, NotNegative, Positive, PositiveInt, read_as, read_json
from samestep.base.errors import UsageError
from samestep.base.record import write_json

FORMAT = 2
"""The version of the format of ``study.json``."""

NAME = "study.json"
"""The name of the file in a study's folder."""

_BYTES = 32 << 20  # the largest file that is read; a study of a thousand workers has some megabytes
_LOG = re.compile(r"(?<= Its log: )(\S+)(?=\.$)")  # at the end of the note on a failed run

PHASES = step_phases.ALL
"""The phases of a step; `exposed_sync` is the communication that backward did not hide."""

Mode: TypeAlias = Literal["strong", "weak", "neither"]
"""The scaling mode: the global batch was constant, grew with the workers, or did neither."""


Interval: TypeAlias = tuple[float, float]
"""The lower and the upper end of a 95 % interval."""


def known(low: float | None, high: float | None) -> Interval | None:
    """Return the interval between two ends, or None if they are unknown."""
    return None if low is None or high is None else (low, high)


def is_vague(between: Interval) -> bool:
    """Return whether an interval is too wide for a conclusion: more than a factor of two."""
    low, high = between
    return high > 2 * low


def _missing_phases(step_s: Mapping[str, float]) -> str:
    missing = [name for name in PHASES if name not in step_s] if step_s else []
    return f"lacks {', '.join(missing)}" if missing else ""


def _unknown_phase(phase: str) -> str:
    return "" if phase in PHASES else f"is not one of {', '.join(PHASES)}"


Seconds: TypeAlias = Annotated[Mapping[str, NotNegative], _missing_phases]
"""Seconds of each of `PHASES` in one step; empty if they were not measured."""


class Span(NamedTuple):
    """One phase on a time line, in seconds since the first rank began the step."""

    phase: Annotated[str, _unknown_phase]
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One worker of a point: its number, its host, and the mean of its own steps by phase."""

    rank: int
    host: str = ""
    step_s: Seconds = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One cause of overhead, and its share of the step: a reason why a point is slower than ideal.

    The shares of all losses and gains add up to 1 less the efficiency.
    """

    cause: str
    share: float
    phase: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The measurements at one number of workers; a number that was not measured is None.

    `speedup` is over the fastest one worker on at most the cores of the workers: one worker like each of
    them, or one with the cores of several (`baseline_cores_of`). `efficiency` is against one like each.
    """

    workers: PositiveInt
    cores_of: PositiveInt = 1
    mode: Mode = "strong"
    variant: str = ""
    nodes: PositiveInt = 1
    threads: int | None = None
    processors: int | None = None
    device: str = ""
    kind: str = ""
    sync: str = ""
    backend: str = ""
    global_batch: Positive | None = None
    samples_per_second: Positive
    samples_per_second_low: Positive | None = None
    samples_per_second_high: Positive | None = None
    speedup: Positive
    speedup_low: Positive | None = None
    speedup_high: Positive | None = None
    efficiency: Positive
    baseline_cores_of: PositiveInt = 1
    step_s: Seconds = field(default_factory=dict)
    exchange_s: float | None = None
    waiting_s: float | None = None
    exchange_bytes: PositiveInt | None = None
    losses: tuple[Loss, ...] = ()
    ranks: tuple[Rank, ...] = ()
    timeline: tuple[tuple[Span, ...], ...] = ()
    memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    worker_hours_per_epoch: float | None = None
    runs: tuple[Positive, ...] = ()
    oversubscribed: bool = False

    @property
    def between(self) -> Interval | None:
        """The interval of the speedup, if it is known."""
        return known(self.speedup_low, self.speedup_high)

    @property
    def is_open(self) -> bool:
        """Whether this interval is too wide for a conclusion."""
        return self.between is not None and is_vague(self.between)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The decision whether a number of workers reaches the requested efficiency.

    It is certain if the whole interval is on that side, and neither point nor baseline is oversubscribed.
    """

    workers: int
    mode: Mode
    variant: str = ""
    efficiency: float
    is_worth: bool
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about runs that affects how to read a study, with its stable code; no workers mean all."""

    code: str
    text: str
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion of a study: a stable code, and its sentence.

    Code, workers, knee and largest worth are about `variant`, the fastest.
    """

    code: str
    sentence: str
    is_certain: bool = False
    workers: int | None = None
    variant: str = ""
    knee: int | None = None
    bar: float | None = None
    worth: tuple[Worth, ...] = ()
    largest_worth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One training on several numbers of workers; `one_process` has one worker with the cores of several."""

    format: int = FORMAT
    target: str
    command: tuple[str, ...] = ()
    created: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "samples/s"
    points: tuple[Point, ...] = ()
    one_process: tuple[Point, ...] = ()
    verdict: Verdict | None = None
    notes: tuple[Note, ...] = ()

    def with_notes(self, added: Iterable[Note]) -> "Study":
        """Return the study with further notes; those that it has already are not repeated."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *added))))


def write_study(path: Path, study: Study) -> None:
    """Write `study` to `path` atomically: a reader finds the old file or the new one.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_json(path, asdict(study))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from None


def read_study(path: Path) -> Study:
    """Return the study in `path`, or in the ``study.json`` of the folder `path`.

    Raises:
        UsageError: there is none, it is damaged, or it has another format; names the place.
    """
    file = path / NAME if path.is_dir() else path
    document = read_json(file, most=_BYTES)
    if not isinstance(document, dict) or not {"format", "points"} <= document.keys():
        raise UsageError(f"{file} is not a study: it lacks format or points.")
    if document["format"] != FORMAT:
        raise UsageError(
            f"{file} is of format {document['format']}, and this version of samestep reads {FORMAT}: "
            "read it with the version that wrote it."
        )
    try:
        study: Study = read_as(Study, document, "study")
        _check(study)
    except FormatError as error:
        raise UsageError(f"{file} is damaged: {error}.") from None
    return study


def _check(study: Study) -> None:
    """Raise `FormatError` if parts of a study contradict each other."""
    if study.verdict is not None and not study.points:
        raise FormatError("study has a verdict and no points")
    for number, point in enumerate(study.points):
        rows = len(point.timeline)
        if rows not in (0, len(point.ranks) or point.workers):  # one rank records a script that runs once
            where = f"study.points[{number}].timeline"
            raise FormatError(f"{where} is of {rows} workers, and the point of {point.workers}")


def seen_from_here(study: Study, folder: Path) -> Study:
    """Return the `study` of `folder` with paths of logs that are relative to the current folder."""
    notes = (
        replace(note, text=_LOG.sub(lambda log: str(folder / log[0]), note.text)) for note in study.notes
    )
    return replace(study, notes=tuple(notes))
