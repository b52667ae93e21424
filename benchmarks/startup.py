"""Start: from the command to its exit, for one all-reduce on two workers; and how soon help answers.

    python benchmarks/startup.py [ROUNDS]

Each round runs every way once, in an order of its own, so that a noisy machine favours nobody. Printed are
the medians and, for the ratios, the median over rounds of the ratio within a round with its quartiles.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

BIN = Path(sys.executable).parent
PROGRAM = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
BY_HAND = """\
port=$((20000 + $$ % 10000))
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
RANK=0 LOCAL_RANK=0 {python} {program} & first=$!
RANK=1 LOCAL_RANK=1 {python} {program} & second=$!
wait $first && wait $second
"""


def ways(program: Path) -> dict[str, list[str]]:
    """Return each way to start the program, by name."""
    return {
        "samestep": [str(BIN / "samestep"), "run", "-n", "2", str(program)],
        "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(program)],
        "by hand": ["sh", "-c", BY_HAND.format(python=sys.executable, program=program)],
        "help": [str(BIN / "samestep"), "--help"],
        "import torch": [sys.executable, "-c", "import torch"],
    }


def seconds(command: list[str]) -> float:
    """Return how long a command takes to its exit; it must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way in each round."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        commands = ways(program)
        for command in commands.values():  # files into the page cache, bytecode onto the disk
            seconds(command)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name in random.sample(list(commands), len(commands)):
                taken[name].append(seconds(commands[name]))
    return taken


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"{rounds} rounds, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start")
    taken = measure(rounds)
    for name, samples in taken.items():
        print(f"{name:>14} {median(samples):6.2f} s   (best {min(samples):.2f}, worst {max(samples):.2f})")
    for over, under in (("samestep", "torchrun"), ("samestep", "by hand"), ("help", "import torch")):
        pairs = [a / b for a, b in zip(taken[over], taken[under], strict=True)]
        low, middle, high = quantiles(pairs, n=4)
        of_medians = median(taken[over]) / median(taken[under])
        print(
            f"{over} / {under}: {of_medians:.2f} of medians; pairs {middle:.2f} ({low:.2f} .. {high:.2f}, "
            f"worst {max(pairs):.2f})"
        )


if __name__ == "__main__":
    main()
