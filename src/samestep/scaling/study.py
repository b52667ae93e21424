"""A scaling study as a value: what was measured at each number of workers, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from samestep.base import phases

FORMAT = 1
"""The version of a study's form."""

PHASES = phases.ALL
"""The parts of a step; `exposed_sync` is what the step waits for and backward did not hide."""

Mode: TypeAlias = Literal["strong", "weak", "neither"]
"""Whether the global batch stayed, grew with the workers, or did neither."""

Seconds: TypeAlias = Mapping[str, float]
"""Seconds of each of `PHASES` in one step; empty where nobody measured them."""


class Span(NamedTuple):
    """A phase on a time line."""

    phase: str
    """One of `PHASES`."""
    begin_s: float
    """When it began, in seconds since the first rank began the step."""
    end_s: float
    """When it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One worker of a point.

    Args:
        rank: its number.
        host: where it ran.
        step_s: the mean of its own steps, by phase.
    """

    rank: int
    host: str = ""
    step_s: Seconds = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One reason why a point is not as fast as the ideal.

    Args:
        cause: ``straggler``, ``waiting`` (now for one rank, now for another), ``exchange``, ``data``,
            ``to_device``, ``compute`` (forward and backward), ``optimizer`` or ``other``.
        share: of the step's time; those of all losses and gains add up to 1 less the efficiency.
        phase: in which a straggler is slow.
        rank: who the straggler is.
    """

    cause: str
    share: float
    phase: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A number of workers, measured.

    Args:
        workers: how many.
        mode: whether the global batch is that of the fewest workers, grew with them, or neither.
        variant: what is compared within the study, such as ``sync=flat``; empty for none.
        nodes: machines they ran on.
        threads: of each worker.
        processors: that a worker may use.
        device: ``cpu``, ``cuda``, ...
        kind: who trains: ``serial``, ``steered``, ``native`` or ``recipe``; empty where nobody says.
        sync: how gradients are exchanged, such as ``ddp``; empty where they are not, or nobody says.
        backend: that carries gradients: of `torch.distributed`, or ``shared memory``; empty without one.
        recipe: of what a recipe is trained as, the settings that advice depends on; empty for others.
        global_batch: samples of a step on all workers, as seen; None where nobody saw them.
        samples_per_second: the median of the repeats; of an even number the slower of the two in the middle.
        samples_per_second_low: of the 95 % interval; None with a single repeat.
        samples_per_second_high: likewise.
        speedup: the rate over that at the fewest workers of the same mode and variant, times their number.
        speedup_low: of the 95 % interval; None where a rate has none.
        speedup_high: likewise.
        efficiency: speedup by workers.
        step_s: a step of the median repeat by phase, the mean over ranks and steps.
        exchange_s: the part of `step_s`' ``exposed_sync`` in which all waited: the exchange itself.
        waiting_s: the rest, in which some waited for others.
        exchange_bytes: of gradients, that each worker gives to the exchange in a step; None where that is not
            known.
        exchange_runs: `exchange_s` of each repeat.
        losses: why it is not as fast as the ideal, the largest first.
        ranks: each worker of the median repeat.
        timeline: one usual step of it; for each rank its phases in a fixed order; all leave the exchange
            together.
        memory_bytes: the most that a worker held.
        device_memory_bytes: likewise on its accelerator.
        worker_hours_per_epoch: what an epoch costs; None where its samples are not known.
        runs: samples per second of each repeat.
        oversubscribed: whether its workers had fewer cores than threads, or fewer accelerators than workers.
    """

    workers: int
    mode: Mode = "strong"
    variant: str = ""
    nodes: int = 1
    threads: int | None = None
    processors: int | None = None
    device: str = ""
    kind: str = ""
    sync: str = ""
    backend: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    global_batch: float | None = None
    samples_per_second: float
    samples_per_second_low: float | None = None
    samples_per_second_high: float | None = None
    speedup: float
    speedup_low: float | None = None
    speedup_high: float | None = None
    efficiency: float
    step_s: Seconds = field(default_factory=dict)
    exchange_s: float | None = None
    waiting_s: float | None = None
    exchange_bytes: int | None = None
    exchange_runs: tuple[float, ...] = ()
    losses: tuple[Loss, ...] = ()
    ranks: tuple[Rank, ...] = ()
    timeline: tuple[tuple[Span, ...], ...] = ()
    memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    worker_hours_per_epoch: float | None = None
    runs: tuple[float, ...] = ()
    oversubscribed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model laid through the points of one mode and variant.

    Args:
        model: ``amdahl``, ``gustafson`` or ``exchange``.
        mode: of the points.
        variant: likewise.
        workers: the points it was laid through.
        parameters: by name; empty where the points do not determine them.
        deviation: root mean square of the points' relative deviations; None where there are no more points
            than parameters, which the model then meets whatever they are.
        words: what it says, or why there is none.
    """

    model: Literal["amdahl", "gustafson", "exchange"]
    mode: Mode
    variant: str = ""
    workers: tuple[int, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    deviation: float | None = None
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Whether a number of workers pays.

    Args:
        workers: how many.
        mode: of the point.
        variant: likewise.
        efficiency: as measured.
        is_worth: whether that is what was asked for, or more.
        is_certain: whether the whole interval is on that side; False where there is none, and where the point
            or the fewest workers are oversubscribed.
    """

    workers: int
    mode: Mode
    variant: str = ""
    efficiency: float
    is_worth: bool
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the study came to, in words.

    Args:
        manager: one sentence that asks for no knowledge of training.
        engineer: what was lost, where, and what to try.
        serial: what flatters the study: how slow a step is at the fewest workers already; empty for nothing.
        others: the engineer's sentence on the other modes and variants.
        comparisons: why variants differ, or that they cannot be told apart.
        variant: that `manager` and `engineer` are about, the fastest; empty for none.
        knee: workers from which on more of them cost more than they bring; None where it was not reached.
        bar: the efficiency that was asked for; None where none was.
        worth: whether each point reaches it.
        largest_worth: the most workers that do, in that variant; None where none do, or nobody can tell.
    """

    manager: str
    engineer: str
    serial: str = ""
    others: tuple[str, ...] = ()
    comparisons: tuple[str, ...] = ()
    variant: str = ""
    knee: int | None = None
    bar: float | None = None
    worth: tuple[Worth, ...] = ()
    largest_worth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One training on several numbers of workers.

    Args:
        format: the version of this form.
        target: what ran, in words.
        command: that made the study.
        created: when, as ISO 8601.
        machine: on what, as the workers told: hosts, processors, accelerators, versions.
        settings: how it was run and measured: launchers, steps, warm-up, repeats, mode.
        unit: of the rates; ``runs/s`` where only whole times are known.
        points: by mode, variant and number of workers.
        fit: models laid through them.
        verdict: what it came to; None for a study without a point.
        notes: what a reader must know besides.
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
