"""Makes scaling studies for tests from a simple model of a step on N workers."""

from pathlib import Path

from samestep.scaling.analysis.study import PHASES, Point, Rank, Span, Study, read_study
from samestep.scaling.analysis.verdict import conclude

BATCH = 256
STEP_S = {
    "data": 0.004,
    "to_device": 0.0,
    "forward": 0.030,
    "backward": 0.062,
    "optimizer": 0.003,
    "other": 0.001,
}
"""Of one worker."""
MACHINE = {
    "hosts": ["node01"],
    "processor": ["AMD EPYC 7763"],
    "node_processors": [64],
    "memory_bytes": [2**37],
    "torch": ["2.13.0"],
    "python": ["3.11.9"],
}
SHARED = ("data", "forward", "backward")
"""What is divided among the workers in strong scaling."""


def rank_step(workers, rank, *, mode="strong", comm=0.0026, slow=None):
    """Return the seconds of one rank's step; the last rank takes longer where `slow` names a phase."""
    parts = workers if mode == "strong" else 1
    own = {name: seconds / (parts if name in SHARED else 1) for name, seconds in STEP_S.items()}
    if slow and workers > 1 and rank == workers - 1:
        own[slow] *= 1.3
    own["exposed_sync"] = comm * (workers - 1) / workers * 2
    return {name: own[name] for name in PHASES}


def point(workers, *, mode="strong", variant="", slow=None, comm=0.0026, spread=0.015, **more):
    """Return a point; the ranks that are not slow wait for the one that is."""
    steps = [rank_step(workers, rank, mode=mode, comm=comm, slow=slow) for rank in range(workers)]
    longest = max(sum(step.values()) for step in steps)
    least = min(step["exposed_sync"] for step in steps)
    for step in steps:
        step["exposed_sync"] += longest - sum(step.values())
    mean = {name: sum(step[name] for step in steps) / workers for name in PHASES}
    batch = BATCH * (workers if mode == "weak" else 1)
    rate = batch / longest
    known = {
        "mode": mode,
        "threads": 1,
        "processors": 1,
        "device": "cpu",
        "kind": "native",
        "global_batch": batch,
        "samples_per_second_low": rate * (1 - spread),
        "samples_per_second_high": rate * (1 + spread),
        "step_s": mean,
        "exchange_s": least,
        "waiting_s": mean["exposed_sync"] - least,
        "ranks": tuple(Rank(rank=k, host="node01", step_s=step) for k, step in enumerate(steps)),
        "timeline": tuple(_spans(step) for step in steps),
        "memory_bytes": 300_000_000 + 600_000_000 // workers,
        "worker_hours_per_epoch": 50_000 / rate * workers / 3600,
        "runs": (rate * (1 - spread / 2), rate, rate * (1 + spread / 2)),
    }
    return Point(
        workers=workers,
        variant=variant,
        samples_per_second=rate,
        speedup=float(workers),
        efficiency=1.0,
        **(known | more),
    )


def study(*, workers=(1, 2, 4, 8), modes=("strong",), variants=("",), bar=0.7, slow="data", **more):
    """Return a study of every mode and variant; a later variant communicates more slowly.

    Args:
        workers: of each; the first is one worker for all modes.
        modes: ``strong`` and ``weak``.
        variants: their names.
        bar: the efficiency that is asked for.
        slow: the phase in which the last rank takes longer.
        more: fields of the study.
    """
    points = [
        point(n, mode=mode, variant=variant, comm=0.0026 * (1 + 2 * number), slow=slow)
        for number, variant in enumerate(variants)
        for mode in modes
        for n in (workers if mode == modes[0] else workers[1:])
    ]
    told = {
        "target": "train.py --epochs 3",
        "command": ("samestep", "scale", "train.py", "-n", ",".join(map(str, workers))),
        "created": "2026-03-04T05:06:07+00:00",
        "machine": MACHINE,
        "settings": {"steps": 40, "warm_up": 5, "repeats": 3, "mode": ", ".join(modes)},
        "points": tuple(points),
    }
    return conclude(Study(**(told | more)), bar)


def two_cores():
    """Return a study with one process on both cores of two workers, without a verdict: that of the guide."""
    return read_study(Path(__file__).with_name("two_cores_study.json"))


def _spans(step):
    """Return a rank's phases, one after the other."""
    spans, now = [], 0.0
    for name in PHASES:
        spans.append(Span(name, now, now + step[name]))
        now += step[name]
    return tuple(spans)
