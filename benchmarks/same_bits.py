"""``samestep train digits --exact 8``: the same weights from 1, 2, 3, 4 and 8 workers, and after a stop.

Run: ``python benchmarks/same_bits.py [--every] [--only "resnet18 adamw bf16"]``. The tutorials' ConvNet and
ResNet-18, each with SGD and AdamW, in fp32 and bf16, are trained on a part of the digits by the command that
a user types: the first case with each number of workers, the others with 1 and another one in turn, or with
each as well (``--every``, three times as long). Then with 3 workers once more, who are stopped by SIGTERM in
the middle of the epoch, after which 2 go on; with 2 threads ConvNets are refused. Prints the digests, and
ends with exit code 1 if any differs. Two commands run at a time.
"""

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BATCH, SAMPLES = 32, {"convnet": 280, "resnet18": 120}
OPTIMIZERS, PRECISIONS = {"sgd": "0.05", "adamw": "0.001"}, ("fp32", "bf16")
TRAIN = f"train digits --exact 8 --seed 0 --epochs 1 --batch-size {BATCH}".split()
WORKERS = (1, 2, 3, 4, 8)
BEFORE, AFTER = 3, 2
"""Workers until the stop, and from there on."""
AT_A_TIME = 2
PUT_OFF, REFUSED = 75, 2


@dataclass(frozen=True)
class Case:
    """One training."""

    model: str
    optimizer: str
    precision: str

    def __str__(self) -> str:
        return f"{self.model} {self.optimizer} {self.precision}"

    @property
    def steps(self) -> int:
        """Steps of the epoch, of which the last is a short one."""
        return -(-SAMPLES[self.model] // BATCH)

    def arguments(self, workers: int, folder: Path) -> list[str]:
        """Return those of the command that trains."""
        what = [f"--model={self.model}", f"--subset={SAMPLES[self.model]}", f"--precision={self.precision}"]
        how = [f"--optimizer={self.optimizer}", f"--lr={OPTIMIZERS[self.optimizer]}"]
        return [*TRAIN, *what, *how, "-n", str(workers), "--out", str(folder), "--json"]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "samestep", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Return what a command printed as its result; one that ends otherwise than with `code` ends all."""
    out, err = process.communicate()
    if process.returncode != code:
        raise RuntimeError(f"exit code {process.returncode}, not {code}: {process.args!r}\n{err}")
    return out


def digest(process: subprocess.Popen[str]) -> str:
    return str(json.loads(ended(process))["weights_sha256"])


def stopped(case: Case, folder: Path) -> int:
    """Stop a run between its first step and its last; return the step it was stopped after."""
    process = start([*case.arguments(BEFORE, folder), "--checkpoint-steps", "1", "--keep", "20"])
    while process.poll() is None and not list((folder / "checkpoints").glob("step-*")):
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    ended(process, PUT_OFF)
    step = max(int(one.name.removeprefix("step-")) for one in (folder / "checkpoints").glob("step-*"))
    if step >= case.steps:
        raise RuntimeError(f"{case} was stopped after its last step, too late to show anything: try again")
    return step


def resumed(case: Case, folder: Path) -> tuple[int, str]:
    """Return after which step a run was stopped, and the digest it ends with at another number of workers."""
    step = stopped(case, folder)
    if case.model == "convnet":
        ended(start(["train", "--resume", str(folder), "--threads", "2"]), REFUSED)
    return step, digest(start(["train", "--resume", str(folder), "-n", str(AFTER), "--json"]))


def tried(case: Case, workers: int | None, folder: Path) -> tuple[str, str]:
    """Return how a run was done, in words, and the digest it ended with; without `workers` it is stopped."""
    try:
        if workers is None:
            step, found = resumed(case, folder)
            return f"-n {BEFORE}, stopped after step {step}, resumed with -n {AFTER}", found
        return f"-n {workers}", digest(start(case.arguments(workers, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", action="store_true", help="each number of workers in each case")
    parser.add_argument("--only", default="", metavar="CASE", help="cases whose name holds this")
    options = parser.parse_args()
    cases = [Case(*one) for one in itertools.product(SAMPLES, OPTIMIZERS, PRECISIONS)]
    others = itertools.cycle(WORKERS[1:])
    chosen = {
        case: WORKERS if options.every or case is cases[0] else (1, next(others))
        for case in cases
        if options.only in str(case)
    }
    began, all_equal = time.perf_counter(), True
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(AT_A_TIME) as pool:
        runs = {
            case: [pool.submit(tried, case, n, Path(scratch, f"{case} {n}")) for n in (None, *workers)]
            for case, workers in chosen.items()
        }
        for case, futures in runs.items():
            found = [future.result() for future in futures]
            equal = len({one for _, one in found}) == 1
            all_equal &= equal
            print(f"{case}: {'equal bits' if equal else 'NOT EQUAL'}")
            for how, one in found:
                print(f"  {one[:16]}  {how}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    sys.exit(not all_equal)


if __name__ == "__main__":
    main()
