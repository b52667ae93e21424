"""A serial script with N workers against what its user has: the same script with `python`, on the same cores.

    python benchmarks/baseline.py [--only convnet-64] [--rounds 4] [--source before=FOLDER]
    PYTHONPATH=tests python benchmarks/baseline.py --nodes 2

Each script runs as plain ``python`` with all cores, also with freed memory kept by the C library, unchanged
with ``samestep run -n`` the cores, with all calls split and with those that it splits by default, and
rewritten by hand for torch DDP. All are alive at once and take turns
of some seconds; DataLoader, optimizer and communication are part of a step. Printed are medians of the steps,
and the speedup over ``python`` with its range over the rounds. The defaults take about ten minutes on two
cores.

With ``--nodes 2`` two network namespaces with one core each are the nodes, and ``python`` has one node with
one core: once with a link of 1 Gbit/s, once without a limit. The namespaces take root.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from turns import in_turns

SCRIPTS = Path(__file__).parent / "scripts"
SERIAL, BY_HAND = SCRIPTS / "problem_serial.py", SCRIPTS / "problem_by_hand.py"
PYTHON, KEEPING, SAMESTEP, DEFAULT = "python", "python, memory kept", "samestep", "by default"
KEEP = ("env", f"MALLOC_MMAP_THRESHOLD_={32 << 20}", f"MALLOC_TRIM_THRESHOLD_={1 << 30}")
"""Lets the C library keep freed memory, as samestep does; it helps ``python`` too."""
PATIENT = ("--hang-timeout", "3600")
"""A run that waits for its turn makes no steps, and must not be taken for one that hangs."""


STEPS = {
    "convnet-64": 180,
    "convnet-256": 45,
    "resnet18-32": 5,
    "gpt-16": 40,
    "unet-16": 8,
    "dit-16": 12,
    "mlp-32": 1500,
    "slow-loader-64": 60,
    "slow-loader-64-processes": 60,
}
"""The steps of a round of each script of `scripts/problems.py`: about 2.5 s on two cores."""


def on_one_host(name: str, steps: int, workers: int, sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the commands of a script by way, on the cores of this host; `sources` are other trees."""
    run = [sys.executable, "-m", "samestep", "run", "-n", str(workers), *PATIENT]
    end = [name, str(steps)]
    # With this flag a check is completed at its first call, and no timed step is beside it.
    serial = [*run, "--short-calls", "split", str(SERIAL), *end]
    default = [*run, str(SERIAL), *end]
    others = {way: ["env", f"PYTHONPATH={folder}", *serial] for way, folder in sources.items()}
    by_hand = [*run, "--mode", "native", str(BY_HAND), *end]
    python = [sys.executable, str(SERIAL), *end]
    keeping = [*KEEP, *python]
    return {
        PYTHON: python,
        KEEPING: keeping,
        SAMESTEP: serial,
        DEFAULT: default,
        **others,
        "DDP": by_hand,
    }


def on_nodes(nodes: Any, name: str, steps: int) -> dict[str, list[str]]:
    """Return the commands of a script by way, on one core of each node; `python` has the first node."""
    end = [name, str(steps)]
    ways = {SAMESTEP: (str(SERIAL), *end), "DDP": ("--mode", "native", str(BY_HAND), *end)}
    python = _on_core(nodes, 0, [str(SERIAL), *end])
    commands = {PYTHON: python, KEEPING: [*KEEP, *python]}
    for number, (way, rest) in enumerate(ways.items()):
        commands[way] = _together([_worker(nodes, node, 29700 + number, rest) for node in range(2)])
    return commands


def _worker(nodes: Any, node: int, port: int, rest: Sequence[str]) -> list[str]:
    job = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1", "--master-addr=node0"]
    run = ["-m", "samestep", "run", *job, f"--master-port={port}", "--threads=1", *PATIENT, *rest]
    return _on_core(nodes, node, run)


def _on_core(nodes: Any, node: int, words: Sequence[str]) -> list[str]:
    """Return the command that runs Python on one core of a node."""
    # Ranks that see each other's processes would find that their nodes share a memory.
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    core = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[node])]
    return [*nodes.command(nodes.names[node], *apart, *core, sys.executable, *words)]


def _together(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return one command that runs two, and fails if one of them does."""
    first, second = map(shlex.join, commands)
    return ["sh", "-c", f"{first} & {second}; code=$?; wait $! || code=$?; exit $code"]


def measure(
    commands: Mapping[str, Sequence[str]], rounds: int, steps: int, turn_s: float
) -> dict[str, list[float]]:
    """Return the median step of each way in each round, in seconds; the first round is not counted."""
    plain = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    printed = in_turns(commands, plain, turn_s)
    seconds = {way: json.loads(out.splitlines()[-1]) for way, out in printed.items()}
    starts = [steps * number for number in range(1, rounds + 1)]
    return {way: [median(own[at : at + steps]) for at in starts] for way, own in seconds.items()}


def show(title: str, medians: Mapping[str, Sequence[float]]) -> None:
    """Print the figures of one script."""
    print(title)
    for way, own in medians.items():
        ratios = sorted(base / one for base, one in zip(medians[PYTHON], own, strict=True))
        print(
            f"  {way:19} {1e3 * median(own):8.1f} ms  {median(ratios):5.2f} x python "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=STEPS, help="repeatable")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, help="of a round; by default as many as take some seconds")
    parser.add_argument("--turn", type=float, default=3.0, help="seconds of a turn")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="also run samestep from another tree, such as that of an earlier commit; repeatable",
    )
    options = parser.parse_args()
    names = options.only or list(STEPS)
    if options.nodes == 1:
        workers = len(os.sched_getaffinity(0))
        for name in names:
            steps = options.steps or STEPS[name]
            sources = dict(one.split("=", 1) for one in options.source)
            commands = on_one_host(name, steps * (options.rounds + 1), workers, sources)
            title = f"{name}, 1 process with {workers} cores against {workers} with one each"
            show(title, measure(commands, options.rounds, steps, options.turn))
    elif os.geteuid():
        print("--nodes makes network namespaces, which takes root: left out")
    else:
        _measure_nodes(names, options)


def _measure_nodes(names: Sequence[str], options: argparse.Namespace) -> None:
    from support.nodes import Nodes

    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder), 2)
        try:
            for name in names:
                steps = options.steps or STEPS[name]
                for rate in ("1gbit", None):
                    commands = on_nodes(nodes, name, steps * (options.rounds + 1))
                    link = "no limit" if rate is None else "1 Gbit/s"
                    title = f"{name}, 1 node with one core against 2 with one each, {link}"
                    with nullcontext() if rate is None else nodes.limited(rate):
                        show(title, measure(commands, options.rounds, steps, options.turn))
        finally:
            nodes.close()


if __name__ == "__main__":
    main()
