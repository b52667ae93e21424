"""A serial script on N workers against the same script rewritten by hand for torch DDP.

    python benchmarks/autopilot.py [--model convnet] [--batch-size 64] [--workers 2] [--rounds 5]

``scripts/serial.py`` runs on one worker of one thread, and unchanged on N of one thread each; the other one,
``scripts/by_hand.py``, runs on N. They take turns; told are the medians of their steps, loading included, and
of the ratios round by round.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def step_s(script: str, workers: int, options: argparse.Namespace) -> float:
    """Run a script; return the median seconds of its steps."""
    command = [sys.executable, "-m", "samestep", "run", "-n", str(workers), str(SCRIPTS / script)]
    flags = ["--model", options.model, "--batch-size", options.batch_size, "--steps", options.steps]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, flags)], capture_output=True, check=True, text=True, env=environment
    )
    return float(done.stdout.split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ways = {
        "serial": ("serial.py", 1),
        "unchanged": ("serial.py", options.workers),
        "by hand": ("by_hand.py", options.workers),
    }
    rounds = [{name: step_s(*way, options) for name, way in ways.items()} for _ in range(options.rounds)]
    print(f"{options.model}, batch {options.batch_size}, {options.workers} workers of one thread")
    for name in ways:
        ratios = [one[name] / one["by hand"] for one in rounds]
        speedups = [one["serial"] / one[name] for one in rounds]
        print(
            f"{name:10} {1e3 * statistics.median(one[name] for one in rounds):8.1f} ms   "
            f"{statistics.median(ratios):5.2f} of by hand   {statistics.median(speedups):5.2f}x of serial"
        )


if __name__ == "__main__":
    main()
