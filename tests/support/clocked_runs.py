"""Makes records of runs as the step clock writes them, with invented times."""

import json
import random
from collections.abc import Mapping, Sequence

from samestep.scaling.analysis.points import from_times, measured
from samestep.scaling.analysis.runs import RankFile, Run
from samestep.scaling.analysis.study import Study
from samestep.scaling.analysis.verdict import conclude

PHASES = ("data", "to_device", "forward", "backward", "optimizer", "other")
OWN = {
    "data": 0.002,
    "to_device": 0.0,
    "forward": 0.030,
    "backward": 0.060,
    "optimizer": 0.003,
    "other": 0.001,
}
"""Seconds of a step on one worker."""


def clocked(
    workers: int,
    *,
    batch: float = 64,
    own: Mapping[str, float] | Sequence[Mapping[str, float]] = OWN,
    comm: float = 0.0,
    steps: int = 20,
    noise: float = 0.0,
    sent: int | None = None,
    seed: int = 0,
    **more: object,
) -> Run:
    """Return a run in which every rank waits for the slowest, and then all ranks communicate.

    Args:
        workers: ranks.
        batch: samples of a step on all of them.
        own: seconds of a rank's phases in each step; or of each rank's.
        comm: seconds of a step that all ranks communicate.
        steps: measured.
        noise: by which part forward differs from step to step and rank to rank, at most.
        sent: bytes of gradients that each rank sends in a step.
        seed: of that.
        more: fields of the run, or of its ranks' headers.
    """
    draw = random.Random(seed)
    of_ranks = [own] * workers if isinstance(own, Mapping) else own
    lines: list[list[dict[str, float]]] = [[] for _ in range(workers)]
    at = 1000.0
    for step in range(5, 5 + steps):
        took = [dict(phases, forward=phases["forward"] * (1 + draw.uniform(0, noise))) for phases in of_ranks]
        whole = max(sum(phases.values()) for phases in took) + comm
        for rank, phases in enumerate(took):
            told = {**phases, "exposed_sync": whole - sum(phases.values())}
            line = {
                "step": step,
                "at": at,
                "seconds": whole,
                "samples": batch / workers,
                "exchange_bytes": sent,
            }
            lines[rank].append({**line, **told})
        at += whole
    variant, oversubscribed = str(more.pop("variant", "")), bool(more.pop("oversubscribed", False))
    ranks = [RankFile(header(rank, workers) | more, lines[rank], end(rank)) for rank in range(workers)]
    return Run(ranks=ranks, variant=variant, oversubscribed=oversubscribed)


def header(rank: int, size: int) -> dict[str, object]:
    """Return the first line of a rank's file."""
    told = {"format": 1, "rank": rank, "size": size, "local_rank": rank, "node": 0, "nodes": 1, "host": "a"}
    cpu = {"device": "cpu", "threads": 1, "processors": 1, "cpus": str(rank)}
    return told | {"kind": "recipe", **cpu, "torch": "2.9.0"}


def end(rank: int) -> dict[str, object]:
    """Return the last line of a rank's file."""
    told = {"ended": "steps", "message": "", "samples_per_epoch": 6400}
    return told | {"peak_memory_bytes": 1000 + rank, "peak_device_bytes": None}


def write(folder, run: Run) -> None:
    """Write the files of `run` to `folder`, as its workers would."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, file in enumerate(run.ranks):
        rows = [file.header, *file.steps, file.end]
        text = "".join(json.dumps(row) + "\n" for row in rows if row)
        (folder / f"rank-{rank}.jsonl").write_text(text)


def scaled(factor: float, **more: float) -> dict[str, float]:
    """Return the times of a step of one worker, each times `factor`, but for those that are given."""
    return {name: seconds * factor for name, seconds in OWN.items()} | more


def concluded(runs, bar=None) -> Study:
    """Return the study of `runs`, with its conclusions."""
    return conclude(Study(target="digits", points=measured(runs)), bar)


def timed(times: Mapping[int, float], bar=None) -> Study:
    """Return the study of one time for each number of workers, with its conclusions."""
    return conclude(Study(target="times.csv", points=from_times(times.items())), bar)
