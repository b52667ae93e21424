"""CIFAR-10 in equal time: the tutorial recipe, ``--fast`` by one worker, and ``--fast`` by two.

    python benchmarks/cifar10.py --data-dir DIR [--subset 5000] [--seconds 600] [--seeds 1]

Each is a ``samestep train`` of its own, one after another, on the first SUBSET training images and all 10,000
test images. The seconds are those of training steps, as in evaluations.jsonl; evaluation is left out. Each
way gets as many epochs as it can finish in SECONDS, by the speed of a short run before (or as many as
``--epochs-tutorial`` and ``--epochs-fast`` say), because a schedule is worth something only when it has come
to its end. Told is the last evaluation within SECONDS. One worker has all the processors, two share them.
Each run is evaluated once, at its end, and so is each short run: that takes minutes on a CPU. Saying the
epochs saves the short runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.folders import absolute
from samestep.base.step_phases import OF_LOOP
from samestep.training.recipes.registry import find

CLOSE = 0.97
"""Part of the time that a run is planned to take: it may turn out slower than the short run."""
WARM_UP = 12
"""Steps of the short run."""


@dataclass(frozen=True)
class Way:
    """One way to train."""

    name: str
    flags: tuple[str, ...]
    workers: int
    batch_size: int
    epochs: int | None
    """As many as were asked for; None for as many as fit."""


@dataclass(frozen=True)
class Outcome:
    """What a way came to."""

    epochs: int
    seconds: float
    samples_per_second: float
    accuracy: float
    in_time: bool


@dataclass(frozen=True)
class Race:
    """What is equal for all."""

    data_dir: Path
    subset: int
    seconds: float
    out: Path

    def run(self, way: Way, seed: int) -> Outcome:
        """Train one way and return its last score within the time, or its only one if that was late."""
        epochs = way.epochs or self.fitting(way, seed)
        folder = self.train(way, "run", seed, epochs, self.subset)
        result = json.loads((folder / "result.json").read_text())
        scores = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
        timely = [score for score in scores if score["seconds"] <= self.seconds]
        told = (timely or scores)[-1]
        return Outcome(
            epochs=told["epoch"],
            seconds=told["seconds"],
            samples_per_second=result["samples_per_second"],
            accuracy=told["accuracy"],
            in_time=bool(timely),
        )

    def fitting(self, way: Way, seed: int) -> int:
        """Return how many epochs fit into the time, by the speed of a few steps."""
        few = min(self.subset, WARM_UP * way.batch_size)
        folder = self.train(way, "speed", seed, 1, few)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        later = rows[len(rows) // 2 :]  # the first steps are slower
        seconds = sum(row[phase] for row in later for phase in OF_LOOP) / len(later)
        steps = -(-self.subset // way.batch_size)
        return max(1, int(CLOSE * self.seconds / (seconds * steps)))

    def train(self, way: Way, name: str, seed: int, epochs: int, subset: int) -> Path:
        """Run ``samestep train`` to its end; return its run folder."""
        folder = self.out / f"{way.name.strip('-')}-{way.workers}-seed{seed}-{name}"
        settings: dict[str, Any] = {
            "-n": way.workers,
            "--data-dir": self.data_dir,
            "--subset": subset,
            "--epochs": epochs,
            "--evaluate-every": epochs,
            "--seed": seed,
            "--out": folder,
        }
        flags = [str(item) for pair in settings.items() for item in pair]
        command = [sys.executable, "-m", "samestep", "train", "cifar10", *way.flags, *flags]
        code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
        if code:  # it has said why
            raise SystemExit(code)
        return folder


def report(outcomes: list[tuple[int, Way, Outcome]], race: Race) -> None:
    print(f"\nfirst {race.subset:,} images, {race.seconds:g} s of training each")
    print("seed  way        workers  epochs  training s  samples/s  test accuracy")
    for seed, way, outcome in outcomes:
        late = "" if outcome.in_time else "  (late)"
        print(
            f"{seed:4}  {way.name:9}  {way.workers:7}  {outcome.epochs:6}  {outcome.seconds:10.1f}  "
            f"{outcome.samples_per_second:9,.0f}  {outcome.accuracy:13.2%}{late}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=absolute, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--subset", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs-tutorial", type=int)
    parser.add_argument("--epochs-fast", type=int)
    parser.add_argument("--out", type=absolute, help="keeps the run folders")
    options = parser.parse_args()
    tutorial, fast = (find("cifar10", fast=is_fast).settings.batch_size for is_fast in (False, True))
    ways = [
        Way("tutorial", (), 1, tutorial, options.epochs_tutorial),
        Way("--fast", ("--fast",), 1, fast, options.epochs_fast),
        Way("--fast", ("--fast",), 2, fast, options.epochs_fast),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        race = Race(options.data_dir, options.subset, options.seconds, options.out or Path(scratch))
        outcomes = [(seed, way, race.run(way, seed)) for seed in range(options.seeds) for way in ways]
        report(outcomes, race)


if __name__ == "__main__":
    main()
