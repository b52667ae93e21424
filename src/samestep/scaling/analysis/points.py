"""Computes the points of a study, from its runs or from a table of times; repeats become one point.

The text of a point names its speedup, efficiency, phases and baseline.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, median_high, median_low, stdev
from typing import Any, NamedTuple

from samestep.base.units import counted, percent
from samestep.scaling.analysis.runs import SAME_BATCH, Run, SteadySteps, in_samples, steady_steps, with_epochs
from samestep.scaling.analysis.study import PHASES, Interval, Loss, Mode, Point, Rank

UNIT = "runs/s"
"""The unit of the rates of such a study."""


# Student's t, 97.5 %, by degrees of freedom from 1.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class _Repeat(NamedTuple):
    """A run and its counted steps."""

    run: Run
    steps: SteadySteps


def measured(runs: Sequence[Run], *, one_process: bool = False) -> tuple[Point, ...]:
    """Return a point for each number of workers, variant and measured global batch.

    With `one_process` they are those of one worker with the cores of several, and else all others. Speedup
    and efficiency are those of a study of one point, until `verdict.conclude` relates them.

    Raises:
        UsageError: a run has no counted step.
    """
    counted = with_epochs(in_samples(runs))
    repeats = [_Repeat(run, steady_steps(run)) for run in counted if (run.cores_of > 1) == one_process]
    return tuple(_point(group) for group in _grouped(repeats))


def same_batch(a: float, b: float) -> bool:
    """Return whether two global batches are equal up to rounding."""
    return abs(a - b) <= SAME_BATCH * max(a, b)


def _grouped(repeats: Sequence[_Repeat]) -> list[list[_Repeat]]:
    """Return the repeats of each point, by the measured batch, not by the requested one."""
    groups: list[list[_Repeat]] = []
    for repeat in repeats:
        group = next((group for group in groups if _is_same(group[0], repeat)), None)
        if group is None:
            groups.append([repeat])
        else:
            group.append(repeat)
    return groups


def _is_same(a: _Repeat, b: _Repeat) -> bool:
    first, second = ((run.workers, run.cores_of, run.variant) for run in (a.run, b.run))
    return first == second and same_batch(a.steps.global_batch, b.steps.global_batch)


def _point(repeats: Sequence[_Repeat]) -> Point:
    rates = tuple(repeat.steps.samples_per_second for repeat in repeats)
    known = of_rates(rates)
    rate = known["samples_per_second"]
    usual = repeats[rates.index(rate)]
    headers = [rank.header for rank in usual.run.ranks]
    first, hosts = headers[0], [str(header["host"]) for header in headers]
    phases = usual.steps.phases()
    workers, cores_of = usual.run.workers, usual.run.cores_of
    epoch = _most(repeats, "samples_per_epoch")
    return Point(
        workers=workers,
        cores_of=cores_of,
        variant=usual.run.variant,
        nodes=int(first.get("nodes") or len(set(hosts))),
        threads=first.get("threads"),
        processors=first.get("processors"),
        device=str(first.get("device", "")),
        kind=usual.run.kind,
        sync=str(first.get("sync") or ""),
        backend=str(first.get("backend") or ""),
        global_batch=median(repeat.steps.global_batch for repeat in repeats),
        speedup=float(workers),
        efficiency=1.0,
        step_s={name: sum(rank[name] for rank in phases) / len(phases) for name in PHASES},
        exchange_s=usual.steps.exchange_s,
        waiting_s=usual.steps.waiting_s,
        exchange_bytes=usual.steps.exchange_bytes,
        ranks=tuple(
            Rank(rank=number, host=host, step_s=seconds)
            for number, (host, seconds) in enumerate(zip(hosts, phases, strict=True))
        ),
        timeline=usual.steps.timeline(),
        memory_bytes=_most(repeats, "peak_memory_bytes"),
        device_memory_bytes=_most(repeats, "peak_device_bytes"),
        worker_hours_per_epoch=None if epoch is None else workers * cores_of * epoch / rate / 3600,
        **known,
        oversubscribed=any(repeat.run.oversubscribed for repeat in repeats),
    )


def _most(repeats: Sequence[_Repeat], name: str) -> int | None:
    """Return the largest value of that name in the last lines of all ranks, or None."""
    ends: list[Mapping[str, Any]] = [rank.end for repeat in repeats for rank in repeat.run.ranks]
    return max((int(end[name]) for end in ends if end.get(name) is not None), default=None)


class Time(NamedTuple):
    """The time of one run."""

    workers: int
    seconds: float
    is_weak: bool = False  # whether the work of each worker, not of all together, is that of the baseline


def from_times(rows: Iterable[tuple[int, float] | Time]) -> tuple[Point, ...]:
    """Return a point for each number of workers and mode; several rows of one are its repeats.

    The baseline runs are of both modes, unless each mode has its own (`has_two_bases`). Their work is one
    run in `UNIT`.
    """
    times = [Time(*row) for row in rows]
    smallest = min(time.workers for time in times)
    has_two = has_two_bases(times)
    seconds: dict[tuple[int, bool], list[float]] = {}
    for time in times:
        is_weak = time.is_weak and (has_two or time.workers > smallest)
        seconds.setdefault((time.workers, is_weak), []).append(time.seconds)
    points = []
    for (workers, is_weak), taken in sorted(seconds.items()):
        runs = workers / smallest if is_weak else 1.0
        mode: Mode = "weak" if is_weak else "strong"
        rates = of_rates(tuple(runs / run_s for run_s in taken))
        points.append(Point(workers=workers, mode=mode, speedup=float(workers), efficiency=1.0, **rates))
    return tuple(points)


def has_two_bases(times: Sequence[Time]) -> bool:
    """Return whether the baseline has both strong and weak runs, which need not do the same work."""
    smallest = min(time.workers for time in times)
    return len({time.is_weak for time in times if time.workers == smallest}) > 1


def of_repeats(rates: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of a rate by Student's t over repeats, on a scale of ratios.

    The steps of one run share its placement and its background load, so only runs are repeats: a single run
    has no interval, however many steps it has.
    """
    if len(rates) < 2:
        return None
    logs = [math.log(rate) for rate in rates]
    half = student_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    return min(math.exp(middle - half), median_low(rates)), max(math.exp(middle + half), median_high(rates))


def of_rates(rates: tuple[float, ...]) -> dict[str, Any]:
    """Return the fields of a point that follow from the rates of its repeats.

    The rate is that of one repeat, so that the phases of that run can be shown with it.
    """
    low, high = of_repeats(rates) or (None, None)
    ends = {"samples_per_second_low": low, "samples_per_second_high": high}
    return {"samples_per_second": median_low(rates), **ends, "runs": rates}


def of_ratio(a: float, b: float, of_a: Interval | None, of_b: Interval | None) -> Interval | None:
    """Return the interval of ``one / other`` from those of both; None if one of them is unknown.

    It uses the method of variance estimates recovery, on a scale of ratios. Unlike the quotients of the
    ends, it does not assume that both rates are at opposite ends at the same time.
    """
    if of_a is None or of_b is None:
        return None
    down = math.hypot(math.log(a / of_a[0]), math.log(of_b[1] / b))
    up = math.hypot(math.log(of_a[1] / a), math.log(b / of_b[0]))
    return a / b * math.exp(-down), a / b * math.exp(up)


def student_t(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval with `freedom` degrees of freedom, at least 1."""
    return _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom


NOTABLE = 0.01
"""The smallest share of a step that is reported."""

# The names of phases, and of causes of overhead, in a sentence.
_NAMES = {
    "data": "waiting for data",
    "to_device": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "exposed_sync": "exposed communication",
    "optimizer": "the optimizer",
    "other": "other work",
    "compute": "forward and backward",
    "exchange": "exposed communication",
    "waiting": "waiting for varying ranks",
    "straggler": "waiting for one rank",
}


def times(factor: float) -> str:
    """Return a speedup as text.

    >>> times(3.4)
    '3.40x'
    """
    return f"{factor:.2f}x" if factor < 100 else f"{factor:.0f}x"


def amount(value: float) -> str:
    """Return a rate or a number of samples with four significant digits.

    >>> [amount(value) for value in (0.12344, 64, 1281167)]
    ['0.1234', '64', '1,281,167']
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def phase_name(phase: str) -> str:
    """Return the name of a step's phase, or of a cause of overhead, in a sentence."""
    return _NAMES.get(phase, phase)


def gain(point: Point, base: Point) -> str:
    """Return speedup, with its interval, and efficiency of a point against `base`, as a clause.

    >>> one, two = (Point(workers=n, samples_per_second=n, speedup=n, efficiency=0.8) for n in (1, 2))
    >>> gain(two, one)
    '2 workers: speedup 2.00x, efficiency 80 %'
    """
    over = over_words(point, base)
    known = "" if point.between is None else f" ({' to '.join(map(times, point.between))})"
    speedup = f"speedup {times(point.speedup)}{known}{f' over {over}' if over else ''}"
    return f"{counted(point.workers, 'worker')}: {speedup}, efficiency {percent(point.efficiency)}"


def over_words(point: Point, base: Point) -> str:
    """Return the one worker that the speedup of `point` is over; empty if it is not one on CPUs."""
    if point.baseline_cores_of == 1:
        return like_each(base)
    return f"1 process with {threads_of(point.baseline_cores_of, base)}"


def threads_of(cores_of: int, base: Point) -> str:
    """Return as text the threads of one worker on the cores of `cores_of` workers such as `base`.

    >>> threads_of(4, Point(workers=1, threads=2, samples_per_second=1, speedup=1, efficiency=1))
    '8 threads'
    """
    return counted((base.threads or 1) * cores_of, "thread")


def like_each(base: Point) -> str:
    """Return a baseline of one worker on CPUs in words; empty for others.

    >>> rate = {"samples_per_second": 1, "speedup": 1, "efficiency": 1}
    >>> like_each(Point(workers=1, device="cpu", threads=4, **rate))
    '1 worker with 4 threads'
    """
    if base.workers > 1 or base.device != "cpu" or not base.threads:
        return ""
    return f"1 worker with {threads_of(1, base)}"


def notable_losses(point: Point) -> Sequence[Loss]:
    """Return the losses that are large enough to be reported, at most four."""
    return [loss for loss in point.losses if loss.share >= NOTABLE][:4]


def sync_words(point: Point) -> str:
    """Return the gradient synchronization and its transport; empty if both are unknown.

    >>> rate = {"samples_per_second": 1, "speedup": 1, "efficiency": 0.5}
    >>> sync_words(Point(workers=2, sync="ddp", backend="gloo", **rate))
    'ddp over gloo'
    """
    return " ".join(filter(None, (point.sync, f"over {point.backend}" if point.backend else "")))
