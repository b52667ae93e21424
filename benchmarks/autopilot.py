"""A serial script on N workers against the same script rewritten by hand for torch DDP.

    python benchmarks/autopilot.py [--model convnet] [--batch-size 64] [--workers 2] [--steps 300] [--turn 3]
    python benchmarks/autopilot.py --model mnist --data-dir DIR

``scripts/serial.py`` runs on one worker of one thread, and unchanged on N of one thread each;
``scripts/by_hand.py`` runs on N. With ``--model mnist`` they are ``scripts/mnist_serial.py`` and
``scripts/mnist_by_hand.py``, which load MNIST image by image. All are alive at once and take turns of some
seconds; told are the medians of their steps, loading included.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from turns import in_turns

from samestep.base.folders import absolute

SCRIPTS = Path(__file__).parent / "scripts"


def command(script: str, workers: int, options: argparse.Namespace) -> list[str]:
    """The command that runs a script; it prints the median seconds of its steps."""
    mnist = options.model == "mnist"
    path = SCRIPTS / (f"mnist_{script}" if mnist else script)
    arguments: list[object] = [options.data_dir / "mnist", options.steps]
    if not mnist:
        arguments = ["--model", options.model, "--batch-size", options.batch_size, "--steps", options.steps]
    # A run that waits for its turn makes no steps, and must not be taken for one that hangs.
    patient = ("--hang-timeout", "3600")
    run = [sys.executable, "-m", "samestep", "run", "-n", str(workers), *patient, str(path)]
    return [*run, *map(str, arguments)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turn", type=float, default=3.0, help="seconds; ten steps or more")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data-dir", type=absolute, default="data")
    options = parser.parse_args()
    ways = {
        "serial": ("serial.py", 1),
        "unchanged": ("serial.py", options.workers),
        "by hand": ("by_hand.py", options.workers),
    }
    commands = {name: command(*way, options) for name, way in ways.items()}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    rounds = [
        {name: float(out.split()[0]) for name, out in in_turns(commands, environment, options.turn).items()}
        for _ in range(options.rounds)
    ]
    print(f"{options.model}, batch {options.batch_size}, {options.workers} workers of one thread")
    for name in ways:
        ratios = [one[name] / one["by hand"] for one in rounds]
        speedups = [one["serial"] / one[name] for one in rounds]
        print(
            f"{name:20} {1e3 * statistics.median(one[name] for one in rounds):8.1f} ms   "
            f"{statistics.median(ratios):5.2f} of by hand   {statistics.median(speedups):5.2f}x of serial   "
            f"rounds {' '.join(f'{ratio:.2f}' for ratio in ratios)}"
        )


if __name__ == "__main__":
    main()
