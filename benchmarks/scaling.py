"""What ``samestep scale`` says of scripts and a recipe, against the same timed by hand, in turns.

    python benchmarks/scaling.py [--model convnet] [--batch-size 64] [--rounds 5] [--steps 100] [--same-run]

``scripts/scaled_serial.py`` (a serial script, unmodified), ``scripts/scaled_ddp.py`` (torch's
DistributedDataParallel) and ``samestep train synthetic``, each on 1 and on 2 workers. By hand means: two
barriers around all the steps, and a clock; nothing else. Each round takes one study and one run by hand for
each number of workers, in alternating order. Told are samples a second, and the ratios with the 95 % interval
of their mean over the rounds (Student's t). ``--same-run`` compares what one run by hand finds with what the
step clock writes of its same steps: no difference between runs is in that, nor what the clock costs.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import NoReturn, TypeAlias

from memory import keep_memory

from samestep.scaling.analysis.points import student_t
from samestep.scaling.analysis.runs import Run, read_ranks, steady_steps

SCRIPTS = Path(__file__).parent / "scripts"
WORKERS = (1, 2)
TARGETS = ("serial", "ddp", "recipe")
SAMESTEP = (sys.executable, "-m", "samestep")
Rates: TypeAlias = dict[int, list[float]]
"""Samples a second, round by round, for each number of workers."""


def arguments_of(target: str, options: argparse.Namespace) -> list[str]:
    """Return the target and its own arguments, as one writes them."""
    common = [f"--model={options.model}", f"--batch-size={options.batch_size}"]
    if target != "recipe":
        counts = [f"--warm-up={options.warm_up}", f"--steps={options.steps}"]
        return [str(SCRIPTS / f"scaled_{target}.py"), *common, *counts]
    shape = "1x28x28" if options.model == "convnet" else "3x32x32"
    samples = options.batch_size * (options.warm_up + options.steps + 10)
    return ["synthetic", f"--data=synthetic:{shape},10,{samples}", "--epochs=1", *common]


def by_study(target: str, options: argparse.Namespace) -> dict[int, float]:
    """Return samples a second for each number of workers, as a study finds them."""
    flags = ["-n", ",".join(map(str, WORKERS)), "--threads=1"]
    flags += [f"--steps={options.steps}", f"--warm-up={options.warm_up}"]
    with tempfile.TemporaryDirectory() as name:
        flags += ["--repeats=1", "--json", f"--out={Path(name) / 'study'}"]
        study = json.loads(said([*SAMESTEP, "scale", *flags, "--", *arguments_of(target, options)]))
    return {point["workers"]: point["samples_per_second"] for point in study["points"]}


def by_hand(target: str, workers: int, options: argparse.Namespace, clock: Path | None = None) -> float:
    """Return samples a second between two barriers; `clock` is where the clock's files of it go."""
    run = [*SAMESTEP, "run", "-n", str(workers), "--threads=1"]
    clocked = [] if clock is None else [f"--clock={clock}", f"--clock-warm-up={options.warm_up}"]
    arguments = arguments_of(target, options)
    with tempfile.TemporaryDirectory() as name:
        if target == "recipe":
            counts = [str(options.warm_up), str(options.steps)]
            train = [str(SCRIPTS / "scaled_train.py"), *counts, "train", *arguments, *clocked]
            run += ["--mode=native", *train, f"--out={Path(name) / 'run'}"]
        else:
            run += [*clocked, *arguments, "--by-hand"]
        seconds = float(said(run).split()[-1])
    return float(options.batch_size * options.steps / seconds)


def of_one_run(target: str, workers: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return samples a second of the same steps, as the clock has them and between two barriers."""
    with tempfile.TemporaryDirectory() as name:
        clock = Path(name) / "clock"
        hand = by_hand(target, workers, options, clock)
        end = options.warm_up + options.steps
        ranks = [
            replace(rank, steps=[step for step in rank.steps if step["step"] < end])
            for rank in read_ranks(clock)
        ]
    return steady_steps(Run(ranks=ranks)).samples_per_second, hand


def said(command: Sequence[str]) -> str:
    """Return what a command prints; one that is not waited for any longer is ended as a user would end it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}\nexit code {process.returncode}\n{err}")
    return out


def compared(target: str, options: argparse.Namespace) -> tuple[Rates, Rates]:
    """Return samples a second in each round, as samestep tells them and by hand."""
    told: Rates = {workers: [] for workers in WORKERS}
    hand: Rates = {workers: [] for workers in WORKERS}

    def study() -> None:
        for workers, rate in by_study(target, options).items():
            told[workers].append(rate)

    def by_hands() -> None:
        for workers in WORKERS:
            hand[workers].append(by_hand(target, workers, options))

    for number in range(options.rounds):
        if options.same_run:
            for workers in WORKERS:
                clocked, timed = of_one_run(target, workers, options)
                told[workers].append(clocked)
                hand[workers].append(timed)
        else:
            for measure in (by_hands, study) if number % 2 else (study, by_hands):
                measure()
    return told, hand


def tell(target: str, told: Rates, hand: Rates) -> None:
    """Print one target's figures."""
    for workers in WORKERS:
        ratios = [a / b for a, b in zip(told[workers], hand[workers], strict=True)]
        half = (
            student_t(len(ratios) - 1) * stdev(ratios) / len(ratios) ** 0.5
            if len(ratios) > 1
            else float("nan")
        )
        print(
            f"{target:7} {workers} worker{'s' if workers > 1 else ' '} "
            f"samestep {mean(told[workers]):9.1f} samples/s, by hand {mean(hand[workers]):9.1f}: "
            f"{mean(ratios):.3f} (± {half:.3f}; {' '.join(f'{ratio:.3f}' for ratio in ratios)})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--same-run", action="store_true", help="the clock's figures of the run by hand")
    parser.add_argument("--only", choices=TARGETS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    keep_memory()
    for target in TARGETS if options.only is None else (options.only,):
        tell(target, *compared(target, options))


def _end(*_: object) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    main()
