"""The exposed exchange that the step clock tells, against the truth: steps with exchange minus steps without.

    PYTHONPATH=tests python benchmarks/exposed.py [--model resnet18] [--batch-size 4] [--rate 1gbit]

Two ranks of one thread, on two network namespaces as nodes, joined by a link of that rate, train under
``--clock``: a script with torch's DistributedDataParallel, a serial one that samestep shares out, and a
recipe of ``samestep train``. Each takes windows of steps with exchange and without it (``no_sync``; exchanges
of a World that return at once), in turn and in one process, and times them by hand. Their difference is the
truth, with the 95 % interval of its mean over the rounds (Student's t); beside it what the clock's lines of
the same steps say, and by how much each phase is longer with exchange. The namespaces take root.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NoReturn

from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.scaling.analysis.points import student_t
from support.nodes import Nodes

SCRIPTS = Path(__file__).parent / "scripts"
WAYS = ("ddp", "replicated", "recipe")
EXPOSED = "exposed_sync"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Round:
    """Seconds a step on one rank, in a window with exchange and in the one without beside it."""

    with_exchange: float
    without: float
    told: Mapping[str, float]
    """What the clock says of the first window, by phase."""
    told_without: Mapping[str, float]
    """And of the second."""

    @property
    def truth(self) -> float:
        """What the exchange adds to a step."""
        return self.with_exchange - self.without


def command(way: str, node: int, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return the command of one node's rank."""
    # Ranks that see each other's processes would find that their nodes share a memory.
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
    clock = [f"--clock={folder / 'clock'}", "--clock-warm-up=0"]
    common = [f"--model={options.model}", f"--batch-size={options.batch_size}"]
    counts = [str(options.rounds), str(options.steps)]
    if way == "recipe":
        shape = "1x28x28" if options.model == "convnet" else "3x32x32"
        steps = 2 * options.rounds * (options.steps + 1) + 100
        data = f"--data=synthetic:{shape},10,{options.batch_size * steps}"
        flags = [
            "synthetic",
            data,
            *common,
            "--epochs=1",
            f"--out={folder / 'run'}",
            f"--clock-steps={steps - 80}",
        ]
        return [
            *apart,
            str(SCRIPTS / "exposed_train.py"),
            str(folder),
            *counts,
            "train",
            *flags,
            *clock,
        ]
    run = [*apart, "-m", "samestep", "run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"]
    run += ["--master-addr=node0", f"--master-port={options.port}", "--threads=1", *clock]
    mode, script = ("native", "exposed_ddp.py") if way == "ddp" else ("autopilot", "exposed_serial.py")
    arguments = [str(folder), *common, f"--rounds={counts[0]}", f"--steps={counts[1]}"]
    return [*run, f"--mode={mode}", str(SCRIPTS / script), *arguments]


def measured(nodes: Nodes, way: str, options: argparse.Namespace) -> list[Round]:
    """Return the rounds of both ranks."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # ranks may still write to it
        folder = Path(name)
        running = []
        for number, node in enumerate(nodes.names):
            ranks = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            ranks |= {"MASTER_ADDR": "node0", "MASTER_PORT": str(options.port)}
            variables = {"OMP_NUM_THREADS": "1", **(ranks if way == "recipe" else {})}
            running.append(nodes.start(node, *command(way, number, folder, options), **variables))
        _finish(way, running)
        windows = json.loads((folder / "windows-0").read_text())
        return [one for rank, own in enumerate(windows) for one in _rounds(folder, rank, own)]


def _finish(way: str, running: Sequence[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for one in running:
        _, told = one.communicate(timeout=max(1.0, deadline - time.monotonic()))
        if one.returncode:
            raise RuntimeError(f"{way} failed with exit code {one.returncode}\n{told}")


def _rounds(folder: Path, rank: int, windows: Sequence[dict[str, Any]]) -> list[Round]:
    lines = (folder / "clock" / f"rank-{rank}.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if "step" in step]
    rounds = []
    for pair in zip(windows[::2], windows[1::2], strict=True):
        on, off = sorted(pair, key=lambda window: not window["exchange"])
        rounds.append(Round(on["seconds"], off["seconds"], _told(steps, on), _told(steps, off)))
    return rounds


def _told(steps: Sequence[dict[str, Any]], window: dict[str, Any]) -> dict[str, float]:
    """Return the mean seconds of each phase of the clock's steps in a window."""
    within = [step for step in steps if window["from"] < step["at"] + step["seconds"] / 2 < window["to"]]
    return {phase: mean(step[phase] for step in within) for phase in STEP_PHASES}


def tell(way: str, rounds: Sequence[Round]) -> None:
    """Print one way's figures."""
    truths = [one.truth for one in rounds]
    half = student_t(len(rounds) - 1) * stdev(truths) / len(rounds) ** 0.5
    exposed = [one.told[EXPOSED] for one in rounds]
    truth, told = mean(truths), mean(exposed)
    middle = median(exposed) / median(truths)
    print(
        f"{way:8} {1e3 * mean(one.with_exchange for one in rounds):8.1f} ms with, "
        f"{1e3 * mean(one.without for one in rounds):8.1f} ms without: {1e3 * truth:7.1f} ms "
        f"(± {1e3 * half:.1f}); the clock says {1e3 * told:7.1f} ms, {told / truth:.3f} of it, "
        f"by medians {middle:.3f}"
    )
    longer = {
        phase: mean(one.told[phase] - one.told_without[phase] for one in rounds) for phase in STEP_PHASES
    }
    words = ", ".join(f"{phase} {1e3 * seconds:+.1f} ms" for phase, seconds in longer.items() if seconds)
    print(f"{'':8} with exchange, by the clock: {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18", help="resnet18, convnet, ...")
    parser.add_argument("--batch-size", type=int, default=4, help="of both ranks together")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="timed in each window")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--port", type=int, default=29640)
    parser.add_argument("--only", choices=WAYS)
    options = parser.parse_args()
    if os.geteuid():
        print("exposed.py makes network namespaces, which takes root: left out")
        return
    signal.signal(signal.SIGTERM, _end)  # so that the nodes go too
    print(f"{options.model}, batch {options.batch_size}, 2 ranks, {options.rate}: seconds a step")
    with tempfile.TemporaryDirectory() as name:
        nodes = Nodes(Path(name), 2)
        try:
            with nodes.limited(options.rate):
                for way in WAYS if options.only is None else (options.only,):
                    tell(way, measured(nodes, way, options))
        finally:
            nodes.close()


def _end(*_: object) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    main()
