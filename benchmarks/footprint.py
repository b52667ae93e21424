"""What a serial script with N workers takes beside its steps: the time to its third step, and memory.

    python benchmarks/footprint.py [--only convnet-64] [--rounds 5] [--source before=FOLDER]

Each round runs every way once, in an order of its own: plain ``python`` with all cores, and
``samestep run -n`` the cores. Printed are the medians of the seconds from the command to its exit after three
steps, checks of the calls included, and of the largest memory of all processes of a longer run together. What
processes share counts once (the sum of their proportional set sizes).
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median

import psutil
from baseline import PYTHON, SAMESTEP, SERIAL, STEPS

EVERY_S = 0.1
"""Seconds between two looks at the memory."""


def commands(name: str, steps: int, workers: int, sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the commands of a script by way; `sources` are other trees of samestep."""
    end = [str(SERIAL), name, str(steps)]
    run = [sys.executable, "-m", "samestep", "run", "-n", str(workers), *end]
    others = {way: ["env", f"PYTHONPATH={folder}", *run] for way, folder in sources.items()}
    return {PYTHON: [sys.executable, *end], SAMESTEP: run, **others}


def seconds(command: Sequence[str]) -> float:
    """Return how long a command takes to its exit; it must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def largest_memory(command: Sequence[str]) -> float:
    """Return the largest memory in MiB of a command and of all that come from it; it must succeed."""
    largest = 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        largest = max(largest, _memory(process.pid))
        time.sleep(EVERY_S)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return largest / 2**20


def _memory(pid: int) -> int:
    """Return the bytes of a process and of all that come from it; those that end meanwhile count nothing."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=STEPS, help="repeatable")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", action="append", default=[], metavar="NAME=FOLDER")
    options = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    sources = dict(source.split("=", 1) for source in options.source)
    for name in options.only or list(STEPS):
        short = commands(name, 3, workers, sources)
        long = commands(name, 2 * STEPS[name], workers, sources)
        taken: dict[str, list[float]] = {way: [] for way in short}
        memory: dict[str, list[float]] = {way: [] for way in short}
        for _ in range(options.rounds):
            for way in random.sample(list(short), len(short)):
                taken[way].append(seconds(short[way]))
                memory[way].append(largest_memory(long[way]))
        print(f"{name}, {workers} cores, medians of {options.rounds} rounds")
        for way in short:
            ratios = [own / base for own, base in zip(taken[way], taken[PYTHON], strict=True)]
            print(
                f"  {way:10} third step after {median(taken[way]):6.2f} s "
                f"({min(taken[way]):.2f} to {max(taken[way]):.2f}), {median(ratios):.2f} x python; "
                f"memory {median(memory[way]):6.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
