"""A serial script on N workers against the same script rewritten by hand for torch DDP.

    python benchmarks/autopilot.py [--model convnet] [--batch-size 64] [--workers 2] [--rounds 5]
    python benchmarks/autopilot.py --model mnist --data-dir DIR

``scripts/serial.py`` runs on one worker of one thread, and unchanged, with several flags, on N of one thread
each; ``scripts/by_hand.py`` runs on N. With ``--model mnist`` they are ``scripts/mnist_serial.py`` and
``scripts/mnist_by_hand.py``, which load MNIST image by image. All take turns; told are the medians of their
steps, loading included, and of the ratios round by round.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
FLAGS = {
    "unchanged": (),
    "--load shared": ("--load", "shared"),
    "--batch-norm local": ("--batch-norm", "local"),
    "--split loader": ("--split", "loader"),
    "both": ("--split", "loader", "--batch-norm", "local"),
}


def step_s(script: str, workers: int, flags: tuple[str, ...], options: argparse.Namespace) -> float:
    """Run a script; return the median seconds of its steps."""
    mnist = options.model == "mnist"
    path = SCRIPTS / (f"mnist_{script}" if mnist else script)
    arguments: list[object] = [options.data_dir / "mnist", options.steps]
    if not mnist:
        arguments = ["--model", options.model, "--batch-size", options.batch_size, "--steps", options.steps]
    command = [sys.executable, "-m", "samestep", "run", "-n", str(workers), *flags, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, check=True, text=True, env=environment
    )
    return float(done.stdout.split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    options = parser.parse_args()
    ways: dict[str, tuple[str, int, tuple[str, ...]]] = {"serial": ("serial.py", 1, ())}
    ways |= {name: ("serial.py", options.workers, flags) for name, flags in FLAGS.items()}
    ways["by hand"] = ("by_hand.py", options.workers, ())
    rounds = [{name: step_s(*way, options) for name, way in ways.items()} for _ in range(options.rounds)]
    print(f"{options.model}, batch {options.batch_size}, {options.workers} workers of one thread")
    for name in ways:
        ratios = [one[name] / one["by hand"] for one in rounds]
        speedups = [one["serial"] / one[name] for one in rounds]
        print(
            f"{name:20} {1e3 * statistics.median(one[name] for one in rounds):8.1f} ms   "
            f"{statistics.median(ratios):5.2f} of by hand   {statistics.median(speedups):5.2f}x of serial"
        )


if __name__ == "__main__":
    main()
