"""The same training under several launchers, and what makes one of them look slower.

    PYTHONPATH=tests python benchmarks/launchers.py --data-dir DIR [--rounds 10] [--turns 10] [--steps 8]

``scripts/launched.py`` (MNIST, DistributedDataParallel, 2 ranks) is started by srun, torchrun, mpirun and
samestep at once, with equal threads, processors and loader workers, and each trains a few steps in turn, in
an order that is drawn anew for each turn: turns are short, so that a machine whose speed drifts favours
nobody. Each round starts all of them afresh, in another order: two processes of one program differ by some
per cent for as long as they live, by where their memory happens to lie. Then one thing at a time is made
different. Each ratio is told with the 95 % interval of its mean over the rounds (Student's t, of logarithms).
Slurm is a throw-away one on two network namespaces' login node; what is not installed is left out.
"""

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import psutil

from samestep.base.folders import absolute
from samestep.scaling.analysis.points import student_t
from support.commands import environment
from support.nodes import Nodes
from support.slurm import Slurm

SCRIPT = Path(__file__).parent / "scripts" / "launched.py"
RANKS = 2
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Way:
    """One way to start the training: what stands before the script, its flags, and variables."""

    name: str
    launcher: Sequence[str]
    flags: Sequence[str] = ()
    variables: Sequence[tuple[str, str]] = ()


class Running:
    """A training that waits to be told to take steps."""

    def __init__(self, way: Way, folder: Path, options: argparse.Namespace, port: int) -> None:
        self.way, self._folder, self._number = way, folder, 0
        folder.mkdir()
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **dict(way.variables)}
        arguments = [str(folder), f"--data-dir={options.data_dir / 'mnist'}", f"--steps={options.steps}"]
        self._said = (folder / "said").open("w+")
        self._process = subprocess.Popen(
            [*way.launcher, str(SCRIPT), *arguments, *way.flags],
            stdout=self._said,
            stderr=self._said,
            env=environment(**variables),
            start_new_session=True,
        )

    def found(self) -> str:
        """Return what rank 0 says of its threads and processors."""
        self._await("found")
        return (self._folder / "found").read_text()

    def turn(self) -> float:
        """Let it take a turn of steps; return the seconds of each."""
        (self._folder / f"go-{self._number}").touch()
        self._await(f"done-{self._number}")
        taken = float((self._folder / f"done-{self._number}").read_text())
        self._number += 1
        return taken

    def end(self) -> None:
        """Let it end; kill all of it if it does not."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        (self._folder / f"end-{self._number}").touch()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for one in started:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self._said.close()

    def _await(self, name: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not (self._folder / name).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / "said").read_text()
                raise RuntimeError(f"{self.way.name}: no {name}\n{said}")
            time.sleep(0.002)


def compare(ways: Sequence[Way], options: argparse.Namespace) -> None:
    """Print each way's time of a step, and its ratio to the first one's."""
    times: Mapping[str, list[float]] = {way.name: [] for way in ways}
    for number in range(options.rounds):
        for name, taken in _round(ways, options, told=number == 0).items():
            times[name].append(taken)
    first = times[ways[0].name]
    for way in ways:
        ratio, low, high = interval([b / a for a, b in zip(first, times[way.name], strict=True)])
        print(
            f"{way.name:38} {1e3 * mean(times[way.name]):7.2f} ms a step   "
            f"{ratio:.3f} of {ways[0].name} ({low:.3f} to {high:.3f})",
            flush=True,
        )


def _round(ways: Sequence[Way], options: argparse.Namespace, *, told: bool) -> dict[str, float]:
    """Return the seconds of a step of each, all of them started afresh: the geometric mean of its turns."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        running = []
        for number, way in enumerate(random.sample(ways, len(ways))):
            one = Running(way, Path(name) / str(number), options, options.port + number)
            ends.callback(one.end)
            running.append(one)
        for one in running:
            found = one.found()
            if told:
                print(f"    {one.way.name:34} {found}")
        for one in running:
            one.turn()
        logs: Mapping[str, list[float]] = {way.name: [] for way in ways}
        for _ in range(options.turns):
            for one in random.sample(running, len(running)):
                logs[one.way.name].append(math.log(one.turn()))
    return {name: math.exp(mean(taken)) for name, taken in logs.items()}


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and the ends of its 95 % interval."""
    logs = [math.log(one) for one in ratios]
    half = student_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = mean(logs)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


@contextmanager
def launchers() -> Iterator[dict[str, list[str]]]:
    """Yield what stands before a script to start it on two ranks of this machine, by launcher."""
    python = sys.executable
    found = {
        "samestep": [python, "-m", "samestep", "run", f"-n{RANKS}", "--threads=1", "--mode=native"],
        "torchrun": [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"],
    }
    if mpirun := shutil.which("mpirun.openmpi") or shutil.which("mpirun"):
        flags = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        found["mpirun"] = [mpirun, *flags, "--bind-to", "none", "--oversubscribe"]
        found["mpirun"] += ["-np", str(RANKS), python]
    if not shutil.which("srun"):
        yield found
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("nodes", "slurm"):
            (folder / part).mkdir()
        nodes = Nodes(folder / "nodes", 1)
        try:
            slurm = Slurm(nodes, folder / "slurm")
            try:
                inside = nodes.command("login", "env", f"SLURM_CONF={slurm.conf}", "srun", f"-n{RANKS}")
                found["srun"] = [*inside, "--cpus-per-task=2", python]
                yield found
            finally:
                slurm.close()
        finally:
            nodes.close()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=absolute, default="data")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--port", type=int, default=29620)
    parser.add_argument("--only", choices=("launchers", "causes"))
    options = parser.parse_args()
    one = ("--threads=1",)
    with launchers() as found:
        if options.only != "causes":
            print(
                f"equal threads, processors, loader workers; {options.rounds} rounds, "
                f"each of {options.turns} turns of {options.steps} steps"
            )
            compare([Way(name, command, one) for name, command in found.items()], options)
        if options.only == "launchers":
            return
        torchrun = found["torchrun"]
        print("one thing different at a time, under torchrun")
        compare(
            [
                Way("as above", torchrun, one),
                Way("2 threads of each rank", torchrun, ("--threads=2",)),
                Way("both ranks on one processor", torchrun, (*one, "--one-core")),
                Way("what was imported frozen for gc", torchrun, (*one, "--frozen")),
                Way("2 loader workers of each rank", torchrun, (*one, "--loader-workers=2")),
                Way(
                    "the same, started in the time", torchrun, (*one, "--loader-workers=2", "--fresh-loaders")
                ),
            ],
            options,
        )


if __name__ == "__main__":
    main()
