"""Converts a run folder to the steps of its ranks, in the form of a clocked run."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.machine.description import CpuShare
from samestep.studies.report.read_run import OTHER, PHASES, Run
from samestep.studies.scaling.analysis.rank_files import RankFile, is_oversubscribed
from samestep.studies.scaling.analysis.rank_files import Run as Measured

_TYPES = ("cpu", "mps", "xpu", "hpu")

WARM_UP = 5
"""Number of ignored steps after each start."""

_MACHINE = ("processor", "memory_bytes", "system", "torch", "python", "samestep")
"""Keys of a session's machine that the header of a clock file has too."""


def measured_run(run: Run) -> Measured:
    """Return the steps since the last start of `run`; each has the mean times of its window.

    Raises:
        UsageError: the folder has no records of its ranks.
    """
    if not run.sessions or not run.ranks:
        raise UsageError(
            f"{run.path} has no records of its workers: sessions.jsonl or ranks.jsonl is missing or empty."
        )
    session = run.sessions[-1]
    workers = int(session["world_size"])
    began = int(session["step"]) + WARM_UP
    files = []
    for rank in range(workers):
        rows = [row for row in run.ranks if row["rank"] == rank]
        steps = [step for row in rows for step in _steps(row) if step["step"] > began]
        node = rank * int(session.get("nodes") or 1) // workers
        header = {**_header(session), "rank": rank, "node": node, "sync": _sync(run, workers)}
        header["config"] = dict(run.config)
        files.append(RankFile(header, steps, {"samples_per_epoch": _epoch(run)}))
    return Measured(ranks=files, oversubscribed=is_oversubscribed([file.header for file in files]))


def _steps(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the equal steps of a window; none if a number of it was not finite."""
    phases = {name: float(row.get(name, math.nan)) for name in PHASES}
    in_step, other = sum(phases.values()), float(row.get(OTHER, 0.0))  # older folders lack it
    samples = row["samples_per_second"] * in_step
    if not math.isfinite(samples + other):
        return
    own = {"seconds": in_step + other, "samples": samples, "at": 0.0, **phases, OTHER: other}
    for before in range(int(row.get("steps", 1))):
        yield {"step": int(row["step"]) - before, **own}


def _sync(run: Run, workers: int) -> str:
    """Return the algorithm of gradient synchronization; empty if there was none, or it was automatic."""
    sync = str(run.config.get("sync", "auto"))
    return "" if workers == 1 or sync == "auto" else sync


def _header(session: Mapping[str, Any]) -> dict[str, Any]:
    names = ("nodes", "launcher", "threads")
    machine = _machine(session)
    device = str(session.get("device", ""))
    is_type = device in _TYPES  # for an NVIDIA GPU, the session has its name
    return {
        "size": int(session["world_size"]),
        "kind": "recipe",
        "host": str(machine.get("hostname", "")),
        **{name: session[name] for name in names if name in session},
        "device": device if is_type or not device else "cuda",
        **({} if is_type or not device else {"device_name": device}),
        "processors": _processors(machine.get("cpu")),
        **{name: machine[name] for name in _MACHINE if name in machine},
    }


def _processors(cpu: object) -> int | None:
    """Return the number of cores that the workers of a node share; None if unknown.

    If the first worker was limited to some cores, the other workers can have had the rest.
    """
    if not isinstance(cpu, dict) or not {"allowed", "cores", "machine"} <= cpu.keys():
        return None
    share = CpuShare(**{field.name: cpu[field.name] for field in fields(CpuShare) if field.name in cpu})
    return share.usable if len(share.allowed) >= share.machine else share.machine


def _machine(session: Mapping[str, Any]) -> Mapping[str, Any]:
    provenance = session.get("provenance")
    machine = provenance.get("machine") if isinstance(provenance, dict) else None
    return machine if isinstance(machine, dict) else {}


def _epoch(run: Run) -> float | None:
    """Return the number of samples per epoch, or None if no evaluation recorded it."""
    ends = [row for row in run.evaluations if row.get("epoch") and row.get("samples")]
    return ends[-1]["samples"] / ends[-1]["epoch"] if ends else None
