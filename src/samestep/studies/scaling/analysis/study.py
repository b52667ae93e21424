"""Defines a scaling study: the measurements at each number of workers, and the conclusions from them.

The classes are the objects of ``study.json``; the reference has a table of their fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from samestep.base import step_phases
from samestep.base.typed_json import NotNegative, Positive, PositiveInt
from samestep.studies.scaling.analysis.confidence import Interval, is_vague, known

FORMAT = 1
"""The version of the format of ``study.json``."""

PHASES = step_phases.ALL
"""The phases of a step; `exposed_sync` is the communication that backward did not hide."""

Mode: TypeAlias = Literal["strong", "weak", "neither"]
"""The scaling mode: the global batch was constant, grew with the workers, or did neither."""


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
    recipe: Mapping[str, Any] = field(default_factory=dict)
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
    exchange_runs: tuple[float, ...] = ()
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
class Fit:
    """A model fitted to the points of one mode and variant; `exchange` is the cost of communication.

    There are no parameters if the points do not determine them, and no deviation if there are no more points
    than parameters, so that the model passes through them in any case.
    """

    model: Literal["amdahl", "gustafson", "exchange"]
    mode: Mode
    variant: str = ""
    workers: tuple[int, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    deviation: float | None = None
    code: str = ""
    words: str = ""


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
class Finding:
    """One statement of a study with its stable code; empty workers, mode or variant mean all of them."""

    kind: str
    code: str
    words: str
    workers: tuple[int, ...] = ()
    mode: str = ""
    variant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusions of a study: `manager` is the summary, `engineer` the advice, `serial` the baseline's.

    The summary and its workers, knee and largest worth are about `variant`, the fastest.
    """

    manager: str
    engineer: str
    serial: str = ""
    others: tuple[str, ...] = ()
    comparisons: tuple[str, ...] = ()
    code: str = ""
    is_certain: bool = False
    workers: int | None = None
    findings: tuple[Finding, ...] = ()
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
    fit: tuple[Fit, ...] = ()
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def with_notes(self, added: Iterable[Finding]) -> "Study":
        """Return the study with further notes; those that it has already are not repeated."""
        added = tuple(added)
        return replace(
            self,
            notes=tuple(dict.fromkeys((*self.notes, *(one.words for one in added)))),
            findings=tuple(dict.fromkeys((*self.findings, *added))),
        )
