"""This tree against an earlier commit: startup, help, steps, the clock's cost and all-reduce.

    python benchmarks/commits.py COMMIT [--rounds 8] [--workers 2]

Each round runs a measurement with both trees, one directly after the other, in a random order. Printed are
the medians of the earlier commit and of this tree, and the median over rounds of their ratio with its
quartiles; below 1, this tree is faster.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
ALL_REDUCE = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
SERIAL = """\
import statistics, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
count, steps = 64, int(sys.argv[1])
data = TensorDataset(torch.randn(count * steps, 1, 28, 28), torch.randint(0, 10, (count * steps,)))
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(800, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
seconds, began = [], time.perf_counter()
for images, labels in DataLoader(data, count, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
print(f"{statistics.median(seconds[len(seconds) // 4 :]):.6f}")
"""


class Tree:
    """A source tree whose commands are measured."""

    def __init__(self, folder: Path, workers: int, place: Path) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "SAMESTEP_BANNER": "0"}
        self._workers, self._place = workers, place

    def output(self, *arguments: object) -> str:
        """Run a command of samestep, and return what it prints."""
        command = [sys.executable, "-m", "samestep", *map(str, arguments)]
        return subprocess.run(
            command, env=self._environment, cwd=self._place, check=True, capture_output=True, text=True
        ).stdout

    def workers(self) -> tuple[object, ...]:
        """Return the flags for the number of workers."""
        return "-n", self._workers, "--threads", 1

    def seconds(self, *arguments: object) -> float:
        """Return the seconds of a command, from its start to its end."""
        began = time.perf_counter()
        self.output(*arguments)
        return time.perf_counter() - began

    def help(self) -> float:
        """Return the seconds of ``--help``."""
        return self.seconds("--help")

    def start(self) -> float:
        """Return the seconds of one all-reduce of a script, start and end included."""
        return self.seconds("run", *self.workers(), self._place / "all_reduce.py")

    def recipe_step(self) -> float:
        """Return the seconds of a step of a recipe."""
        with tempfile.TemporaryDirectory() as out:
            self.output("train", "digits", *self.workers(), "--epochs", 4, "--out", f"{out}/run")
            result = json.loads(Path(f"{out}/run/result.json").read_text())
        return float(result["seconds"]) / float(result["steps"])

    def serial_step(self, *flags: object) -> float:
        """Return the seconds of a step of a serial script."""
        return float(self.output("run", *self.workers(), *flags, self._place / "serial.py", 120))

    def clocked_step(self) -> float:
        """Return the same under the step clock."""
        with tempfile.TemporaryDirectory() as out:
            return self.serial_step("--clock", f"{out}/clock")

    def all_reduce(self, size: str) -> float:
        """Return the seconds of the fastest all-reduce of a size."""
        text = self.output("bench", "all-reduce", *self.workers(), "--sizes", size, "--seconds", 1, "--json")
        rows = json.loads(text if text.startswith("[") else f"[{','.join(text.splitlines())}]")  # old commits
        return min(float(row["median_s"]) for row in rows if "median_s" in row)


MEASUREMENTS: dict[str, Callable[[Tree], float]] = {
    "samestep --help": Tree.help,
    "run: one all-reduce, start to end": Tree.start,
    "step of a recipe (digits)": Tree.recipe_step,
    "step of a serial script": Tree.serial_step,
    "the same under the clock": Tree.clocked_step,
    "all-reduce of 4 B": lambda tree: tree.all_reduce("4"),
    "all-reduce of 4 MiB": lambda tree: tree.all_reduce("4MiB"),
}


@contextmanager
def checked_out(commit: str, place: Path) -> Iterator[Path]:
    """Check out a commit beside this tree, for the duration of a block."""
    folder = place / "earlier"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), commit], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, checked_out(options.commit, Path(name)) as earlier:
        place = Path(name)
        (place / "all_reduce.py").write_text(ALL_REDUCE)
        (place / "serial.py").write_text(SERIAL)
        trees = [Tree(folder, options.workers, place) for folder in (earlier, ROOT)]
        for what, measure in MEASUREMENTS.items():
            pairs = []
            for _ in range(options.rounds):
                order = random.sample((0, 1), 2)
                found = {which: measure(trees[which]) for which in order}
                pairs.append((found[0], found[1]))
            before, now = (median(pair[which] for pair in pairs) for which in (0, 1))
            low, middle, high = quantiles([new / old for old, new in pairs], n=4)
            times = f"{before * 1e3:9.3f} ms  {now * 1e3:9.3f} ms"
            print(f"{what:36s} {times}  {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
