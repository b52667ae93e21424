"""Defines a scaling study: the measurements at each number of workers, and the conclusions from them.

The classes are the objects of ``study.json``; the reference has a table of their fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from samestep.base import step_phases
from samestep.base.typed_json import NotNegative, Positive, PositiveInt

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
    """One cause of overhead: a reason why a point is slower than ideal.

    Args:
        cause: ``straggler``, ``waiting`` (for varying ranks), ``exchange`` (communication), ``data``,
            ``to_device``, ``compute`` (forward and backward), ``optimizer`` or ``other``.
        share: of the step's time; the shares of all losses and gains add up to 1 less the efficiency.
        phase: the phase in which a straggler is slow.
        rank: the straggler.
    """

    cause: str
    share: float
    phase: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The measurements at one number of workers.

    Args:
        workers: their number.
        mode: whether the global batch is that of the baseline, grew with the workers, or did neither.
        variant: the compared setting, such as ``sync=flat``; empty for none.
        nodes: machines they ran on.
        threads: compute threads of each worker.
        processors: cores that a worker may use.
        device: ``cpu``, ``cuda``, ...
        kind: ``serial``, ``steered`` (a serial script on several workers), ``native``, ``recipe``, or empty.
        sync: the gradient synchronization, such as ``ddp``; empty without one, or if unknown.
        backend: the transport of gradients: a backend of `torch.distributed`, ``shared memory``, or empty.
        recipe: the settings of a recipe that advice depends on; empty for other trainings.
        global_batch: samples of a step on all workers, as counted; None if unknown.
        samples_per_second: the median of the repeats; the slower of the middle two if their number is even.
        samples_per_second_low: lower end of the 95 % interval; None for a single repeat.
        samples_per_second_high: upper end of it.
        speedup: the rate divided by the baseline's of the same mode and variant, times its workers.
        speedup_low: lower end of the 95 % interval; None if a rate has none.
        speedup_high: upper end of it.
        efficiency: speedup divided by workers.
        step_s: a step of the median repeat by phase, the mean over ranks and steps.
        exchange_s: the part of ``exposed_sync`` in which all ranks waited: the communication itself.
        waiting_s: the rest of it, in which ranks waited for other ranks.
        exchange_bytes: gradient bytes that each worker sends into the all-reduce in a step; None if unknown.
        exchange_runs: `exchange_s` of each repeat.
        losses: the overhead by cause, the largest first.
        ranks: each worker of the median repeat.
        timeline: a typical step of it: for each rank its phases in a fixed order.
        memory_bytes: peak memory of a worker.
        device_memory_bytes: peak memory on its accelerator.
        worker_hours_per_epoch: the cost of an epoch; None if its samples are unknown.
        runs: samples per second of each repeat.
        oversubscribed: whether its workers had fewer cores than threads, or shared an accelerator.
    """

    workers: PositiveInt
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model fitted to the points of one mode and variant.

    Args:
        model: ``amdahl``, ``gustafson`` or ``exchange`` (the cost of communication).
        mode: of the points.
        variant: of the points.
        workers: the points that were used.
        parameters: by name; empty if the points do not determine them.
        deviation: root mean square of the points' relative deviations; None if there are no more points
            than parameters, so that the model passes through them in any case.
        code: ``fitted``, or why there are no parameters; empty in studies of older versions.
        words: the result in a sentence, or why there is none.
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

    Args:
        workers: their number.
        mode: of the point.
        variant: of the point.
        efficiency: as measured.
        is_worth: whether it is at least the requested one.
        is_certain: whether the whole interval is on that side; False without an interval, and if the point
            or the baseline is oversubscribed.
    """

    workers: int
    mode: Mode
    variant: str = ""
    efficiency: float
    is_worth: bool
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement of a study with its stable code; the reference has a table of codes for each kind.

    Args:
        kind: ``baseline``, ``caveat``, ``advice``, ``comparison`` or ``note``.
        code: in kebab-case, stable between versions.
        words: the statement, whose wording is not stable.
        workers: the numbers of workers that it is about; empty for all.
        mode: of their points; empty for all.
        variant: of their points; empty for all.
    """

    kind: str
    code: str
    words: str
    workers: tuple[int, ...] = ()
    mode: str = ""
    variant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusions of a study.

    Args:
        manager: the summary: one sentence for readers who do not know how training works.
        engineer: the advice: overhead by cause, and what to try.
        serial: reasons why the baseline makes the speedups look better; empty for none.
        others: the advice on the other modes and variants.
        comparisons: differences between variants, and their reasons.
        code: of the summary.
        is_certain: whether the intervals decide the summary.
        workers: the number that the summary is about; None if it is about none.
        findings: the statements in `serial`, `engineer`, `others` and `comparisons`, by code.
        variant: that `manager` and `engineer` are about, the fastest; empty for none.
        knee: workers beyond which more of them cost more than they bring; None if it was not reached.
        bar: the requested efficiency; None if none was.
        worth: whether each point reaches it.
        largest_worth: the most workers that reach it in that variant; None if none do, or inconclusive.
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
    """One training on several numbers of workers.

    Args:
        format: the version of the format.
        target: the training, in words.
        command: the command that made the study.
        created: the time, as ISO 8601.
        machine: hosts, processors, accelerators and versions, as the workers recorded them.
        settings: how it was run and measured: launchers, steps, warm-up, repeats, mode.
        unit: of the rates; ``runs/s`` if only the times of whole runs are known.
        points: by mode, variant and number of workers.
        fit: models fitted to them.
        verdict: the conclusions; None for a study without a point.
        notes: what else a reader needs to know.
        findings: the notes that have a code.
    """

    format: int = FORMAT
    target: str
    command: tuple[str, ...] = ()
    created: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "samples/s"
    points: tuple[Point, ...] = ()
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
