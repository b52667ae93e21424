"""What runs came to, in plain words."""

import math
from collections.abc import Iterable
from itertools import groupby
from statistics import median

from samestep.report.read import PHASES, Run

_WAITING = 0.10
_EXCHANGE = 0.30
_BEHIND = 0.85


def headline(run: Run) -> str:
    """Return the run in one sentence."""
    who = _counted(run.workers, "worker") if run.workers else "A run"
    where = f"most of a step is {_largest_phase(run)}" if run.steps["step"] else "no step was taken"
    if run.result:
        right, seconds = run.result["accuracy"], run.result["seconds"]
        trained = f"{_counted(run.result['epochs'], 'epoch')}, {_counted(run.result['steps'], 'step')}"
        return f"{who}: {right:.2%} of the test set right after {trained}, {seconds:,.1f} s; {where}."
    sofar = f", {run.evaluations[-1]['accuracy']:.2%} of the test set right so far" if run.evaluations else ""
    return f"{who}: not finished; {_counted(run.num_steps, 'step')} taken{sofar}; {where}."


def shares(run: Run) -> dict[str, float]:
    """Return the median seconds of each phase of a step, in order."""
    return {name: _median(run.steps[name]) for name in PHASES}


def hints(run: Run) -> list[str]:
    """Return what somebody who looks at the figures would say, where something is off."""
    found = []
    lost = sum(not math.isfinite(loss) for loss in run.steps["loss"])
    if lost:
        steps = _counted(lost, "step")
        found.append(f"The loss was not finite in {steps}: try a lower learning rate, or --clip-norm.")
    phases = shares(run)
    whole = sum(phases.values()) or 1.0
    data, exchange = phases["data"] / whole, phases["exposed_sync"] / whole
    if data > _WAITING:
        found.append(f"{data:.0%} of a step is waiting for data: more --loader-workers, or data in memory.")
    if exchange > _EXCHANGE:
        found.append(
            f"{exchange:.0%} of a step is waiting for the exchange of gradients: fewer workers, a larger "
            "--batch-size (another training), or --compress."
        )
    found += _slow_ranks(run)
    if run.config.get("label"):
        found.append(str(run.config["label"]))
    return found


def _slow_ranks(run: Run) -> list[str]:
    """Say which rank computes slower than the others: those that wait longer in the exchange wait for it.

    Since the last start: before it, a rank may have had another share of the batch, and another machine.
    """
    began = run.sessions[-1]["step"] if run.sessions else 0
    now = [row for row in run.ranks if row["step"] > began]
    busy = {}
    for rank, rows in groupby(sorted(now, key=lambda row: row["rank"]), key=lambda row: row["rank"]):
        own = [row.get("forward", 0.0) + row.get("backward", 0.0) for row in rows]
        busy[rank] = _median(own)
    if len(busy) < 2:
        return []
    typical = median(busy.values())
    return [
        f"Rank {rank} computes at {typical / seconds:.0%} of the usual speed, and the others wait for it."
        for rank, seconds in busy.items()
        if seconds and typical / seconds < _BEHIND
    ]


def _largest_phase(run: Run) -> str:
    phases = shares(run)
    whole = sum(phases.values())
    name = max(phases, key=lambda phase: phases[phase])
    return f"{name.replace('_', ' ')} ({phases[name] / whole:.0%})" if whole else "too short to measure"


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else 0.0


def _counted(number: int | None, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
