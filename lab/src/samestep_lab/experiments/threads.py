"""Measures training steps with several numbers of compute threads per rank."""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from samestep.base.machine.description import cpu_share
from samestep.base.units import counted, seconds_text
from samestep.bench.figures import as_good, best_text, overlap, quartiles, slowest
from samestep.bench.measurement import in_rounds
from samestep.bench.step_times import WAYS, Problem, Trainee
from samestep.ranks.world.protocol import World
from samestep_lab.experiments.experiment import Outcome, Setup, Table

ROUNDS, STEPS = 5, 10


def counts(cores: int, workers: int) -> dict[str, int]:
    """Return the numbers of threads to measure."""
    return {
        "one": 1,
        "its share of the cores": max(1, cores // workers),
        "all cores, on each rank": cores,
        "four times its share": 4 * max(1, cores // workers),
    }


def on_rank(world: World, chosen: list[int], rounds: int, steps: int) -> dict[int, list[float]]:
    """Return the seconds per step on this rank for each number of threads, one for each round."""
    trainee, before = Trainee(Problem(), world), torch.get_num_threads()
    times: dict[int, list[float]] = {count: [] for count in chosen}
    try:
        with WAYS["bucketed"](trainee, world) as step:
            for count in [*chosen, *in_rounds(chosen, rounds)]:  # the first of each warms up
                torch.set_num_threads(count)
                world.barrier()
                began = time.perf_counter()
                for _ in range(steps):
                    step()
                times[count].append((time.perf_counter() - began) / steps)
    finally:
        torch.set_num_threads(before)
    return {count: taken[1:] for count, taken in times.items()}


def run(setup: Setup, *, rounds: int = ROUNDS, steps: int = STEPS) -> Outcome:
    """Run the experiment."""
    cores = cpu_share().cores
    named = counts(cores, setup.workers)
    chosen = sorted(set(named.values()))
    ranks = setup.ranks(on_rank, setup.workers, chosen, rounds, steps)
    values: dict[int, Any] = {}
    for count in chosen:
        taken = slowest([times[count] for times in ranks])
        values[count] = {"median_s": median(taken), "quartiles_s": quartiles(taken)}
    rows = [
        (
            str(count),
            str(count * setup.workers),
            "; ".join(name for name, number in named.items() if number == count),
            seconds_text(values[count]["median_s"]),
            " - ".join(map(seconds_text, values[count]["quartiles_s"])),
        )
        for count in chosen
    ]
    share = named["its share of the cores"]
    return Outcome(
        tables=[Table(head=("threads", "in all", "rule", "step", "quartiles"), rows=rows)],
        measured=f"On {setup.workers} ranks and {cores} cores {answer(values, share)}",
        values={"cores": cores, "share": share, "threads": values},
    )


def answer(values: Mapping[int, Mapping[str, Any]], share: int) -> str:
    """Return sentences on the best number of threads, and on the worst one against a share of the cores."""
    best_first = sorted(values, key=lambda count: values[count]["median_s"])
    best, *equal = as_good(best_first, lambda count: values[count]["quartiles_s"])
    worst = best_first[-1]
    fastest = (
        f"{best_text([str(best), *map(str, equal)])} threads each"
        if equal
        else f"{counted(best, 'thread')} each {'is' if best == 1 else 'are'} the fastest"
    )
    if overlap(values[worst]["quartiles_s"], values[share]["quartiles_s"]):
        return f"{fastest}."
    ratio = values[worst]["median_s"] / values[share]["median_s"]
    return f"{fastest}. With {worst} a step takes {ratio:.2f} times as long as with the share of {share}."
