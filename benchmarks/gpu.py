"""Measures samestep on the GPUs of this machine, against torch DDP, hand-written loops and published times.

    PYTHONPATH=tests/gpu python benchmarks/gpu.py --data-dir DIR [--device cuda] [--only steps,clock]
        [--json FILE]

``steps`` compares the trainer, a hand-written loop and torch's DistributedDataParallel in one process, on one
GPU, interleaved; ``steps-of-ranks`` compares synchronizers on all GPUs. ``clock`` runs one script plainly,
with the watchdog and with the step clock. ``cifar10-94`` is ``samestep train cifar10 --fast`` on one GPU,
and the seconds until 94 % of the test set are right. ``mnist`` and ``resnet34`` are the tutorials' trainings
at their own settings; ResNet-34 takes the longest. DIR holds the folders mnist and cifar10. ``--rehearse``
runs all of it on the CPU in a tiny size, which tests this program and measures nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpu_checks.context import Context, environment, last_lines, rows
from gpu_checks.devices import Machine, find, found
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from samestep.base.folders import absolute
from samestep.base.machine.accelerators import can_have_accelerators
from samestep.base.step_phases import DATA, OF_LOOP
from samestep.bench.measurement import finisher
from samestep.ranks.world.device import BACKENDS
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.data.image_set import ImageSet
from samestep.training.data.sets.with_parameters import load_synthetic
from samestep.training.loop.precision import machine_has_bf16
from samestep.training.loop.training_loop import Callbacks, Training
from samestep.training.networks import build
from samestep.training.settings import Settings

SCRIPT = Path(__file__).parent / "scripts" / "gpu_steps.py"
TARGET = 0.94
PUBLISHED_S = 2.6
"""Seconds to `TARGET` of the slower of the fastest published recipes for one A100."""
LIMIT_S = 7200.0
"""Seconds after which a command is ended."""
NO_GPU = 3
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    model: str = "resnet9"
    batch: int = 512
    steps: int = 40
    rounds: int = 9
    seconds: float = 20.0
    """Duration of the comparison of synchronizers."""
    recipes: Mapping[str, tuple[str, ...]]
    """Arguments of ``samestep train`` by measurement."""
    target: float = TARGET


def sizes(data_dir: Path | None) -> Sizes:
    """Return the sizes of a measurement; `data_dir` None downloads the data sets."""
    data = () if data_dir is None else ("--data-dir", str(data_dir))
    return Sizes(
        recipes={
            "cifar10-94": ("cifar10", "--fast", "--evaluate-every", "1", *data),
            "mnist": ("mnist", *data),
            "resnet34": ("cifar10", *data),
        }
    )


def rehearsed() -> Sizes:
    """Return sizes for a CPU, with the bundled data set."""
    tiny = ("digits", "--subset", "64", "--epochs", "1")
    names = ("cifar10-94", "mnist", "resnet34")
    return Sizes(
        model="convnet",
        batch=4,
        steps=2,
        rounds=1,
        seconds=0.1,
        recipes=dict.fromkeys(names, tiny),
        target=0.0,
    )


@dataclass(frozen=True)
class Run:
    """The devices and sizes of one run of this program."""

    context: Context
    sizes: Sizes

    @property
    def device(self) -> torch.device:
        """The first device."""
        return self.context.device

    def precision(self) -> str:
        """Return the precision of the fast recipe on this device."""
        return "bf16" if not self.context.is_cpu and machine_has_bf16(self.device) else "fp32"


def model_of(run: Run) -> nn.Module:
    """Return the network of the fast recipe in the memory format of the recipe."""
    torch.manual_seed(0)
    model = build(run.sizes.model, shape=(3, 32, 32), classes=10).to(run.device)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def by_trainer(run: Run, images: ImageSet) -> float:
    """Return seconds per step of the trainer, with its clock and its journal."""
    settings = Settings(
        epochs=1, batch_size=run.sizes.batch, lr=0.01, precision=run.precision(), channels_last=True
    )
    world = SoloWorld(device=run.device)
    training = Training(
        lambda: model_of(run), train_set=images, test_set=images.subset(1), settings=settings, world=world
    )
    result = training.run(Callbacks.disabled(world))
    return result.seconds / result.steps


def by_loop(run: Run, images: ImageSet, *, ddp: bool) -> float:
    """Return seconds per step of a hand-written loop, with or without DistributedDataParallel."""
    model = model_of(run)
    wrapped = DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    finish = finisher(run.device)
    batches = list(_batches(run, images))
    finish()
    began = time.perf_counter()
    for inputs, labels in batches:
        with torch.autocast(run.device.type, torch.bfloat16, enabled=run.precision() == "bf16"):
            scores = wrapped(inputs.float().div_(255))
        loss = F.cross_entropy(scores.float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    finish()
    return (time.perf_counter() - began) / len(batches)


def _batches(run: Run, images: ImageSet) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(run.device)
    pixels, labels = images.images.to(run.device), images.labels.to(run.device)
    for ids in torch.split(order, run.sizes.batch):
        chosen = pixels[ids].contiguous(memory_format=torch.channels_last)
        yield chosen, labels[ids]


def steps(run: Run) -> Figures:
    """Compare the trainer, a hand-written loop, and DistributedDataParallel with one rank, interleaved."""
    images = load_synthetic(f"synthetic:3x32x32,10,{run.sizes.steps * run.sizes.batch}", "train")
    ways: dict[str, Callable[[], float]] = {
        "trainer": partial(by_trainer, run, images),
        "by_hand": partial(by_loop, run, images, ddp=False),
        "ddp": partial(by_loop, run, images, ddp=True),
    }
    with tempfile.TemporaryDirectory() as folder:
        backend, file = BACKENDS[run.device.type], f"file://{folder}/store"
        dist.init_process_group(backend, init_method=file, rank=0, world_size=1)
        try:
            for way in ways.values():  # warm-up
                way()
            taken = _interleaved(ways, run.sizes.rounds)
        finally:
            dist.destroy_process_group()
    ratios = {f"over_{name}": taken["trainer"] / taken[name] for name in ("by_hand", "ddp")}
    return {**{f"{name}_s": value for name, value in taken.items()}, **ratios}


def command(run: Run, *arguments: object) -> list[str]:
    """Run a command of samestep in an interpreter of its own; return the lines that it prints.

    Raises:
        RuntimeError: it failed; the message has its last lines.
    """
    context = run.context
    ended = subprocess.run(
        [sys.executable, "-m", "samestep", *map(str, arguments)],
        cwd=context.folder,
        env={**os.environ, **environment(on_cpu=context.is_cpu)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}: {last_lines(ended.stderr or ended.stdout)}")
    return ended.stdout.splitlines()


def _interleaved(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of each way over rounds in which all take turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in list(ways.items())[:: 1 if number % 2 else -1]:
            taken[name].append(way())
    return {name: median(values) for name, values in taken.items()}


def steps_of_ranks(run: Run) -> Figures:
    """Compare synchronizers on all devices by ``samestep bench step``."""
    if run.context.count < 2:
        return {"skipped": "needs 2 GPUs"}
    flags = ("--sync", "bucketed,ddp", "--model", run.sizes.model, "--batch-per-worker", run.sizes.batch)
    seconds = ("--seconds", run.sizes.seconds)
    printed = command(run, "bench", "step", "-n", run.context.count, *flags, *seconds, "--json")
    return {"rows": json.loads("".join(printed))}


def clock(run: Run) -> Figures:
    """Compare a script that runs plainly, with the watchdog, and with the step clock."""
    ranks = run.context.count
    ways: dict[str, Callable[[], float]] = {
        "plain": partial(_script_s, run, "--hang-timeout", 0),
        "clock": lambda: _script_s(run, "--hang-timeout", 0, "--clock", f"clock-{time.monotonic_ns()}"),
    }
    if ranks > 1:  # one rank waits for no other, and has no watchdog
        ways["watchdog"] = partial(_script_s, run)
    taken = _interleaved(ways, max(1, run.sizes.rounds // 3))
    over = {f"{name}_over_plain": taken[name] / taken["plain"] for name in taken if name != "plain"}
    return {"ranks": ranks, **{f"{name}_s": value for name, value in taken.items()}, **over}


def _script_s(run: Run, *flags: object) -> float:
    sizes = run.sizes
    own = (
        *("--device", run.device.type, "--model", sizes.model, "--batch-size", sizes.batch),
        *("--steps", sizes.steps // 2, "--turns", sizes.rounds),
    )
    printed = command(run, "run", "-n", run.context.count, *flags, SCRIPT, *own)
    return next(float(line.split()[1]) for line in printed if line.startswith("step_s "))


def trained(run: Run, name: str) -> Figures:
    """Train a recipe on one device; return its result, and the loader's share of a step."""
    printed = command(run, "train", *run.sizes.recipes[name], "-n", 1, "--out", name, "--json")
    result: Figures = json.loads(printed[-1])
    taken = rows(run.context.folder / name / "metrics.jsonl")
    loading = sum(row[DATA] for row in taken) / sum(row[phase] for row in taken for phase in OF_LOOP)
    kept = ("accuracy", "epochs", "seconds", "samples_per_second")
    return {**{key: result[key] for key in kept}, "loader_share": loading}


def cifar10_94(run: Run) -> Figures:
    """Train the fast recipe; return the seconds of training until the test accuracy is `TARGET`."""
    figures = trained(run, "cifar10-94")
    scores = rows(run.context.folder / "cifar10-94" / "evaluations.jsonl")
    reached = next((row["seconds"] for row in scores if row["accuracy"] >= run.sizes.target), None)
    ratio = None if reached is None else reached / PUBLISHED_S
    return {**figures, "target": run.sizes.target, "seconds_to_target": reached, "over_published": ratio}


MEASUREMENTS: Mapping[str, Callable[[Run], Figures]] = {
    "steps": steps,
    "steps-of-ranks": steps_of_ranks,
    "clock": clock,
    "cifar10-94": cifar10_94,
    "mnist": partial(trained, name="mnist"),
    "resnet34": partial(trained, name="resnet34"),
}


def measured(run: Run, names: Iterable[str]) -> dict[str, Figures]:
    """Return the figures of each measurement; one that fails has its error, and the others go on."""
    done: dict[str, Figures] = {}
    for name in names:
        try:
            done[name] = MEASUREMENTS[name](run)
        except Exception as error:  # noqa: BLE001 - hours of other figures are not lost
            done[name] = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"measurement": name, **done[name]}), flush=True)
    return done


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "xpu"), help="torch's name of the type")
    parser.add_argument("--data-dir", type=absolute, help="without it, the data sets are downloaded")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="measurements, separated by commas")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU; measures nothing")
    parser.add_argument("--json", type=absolute, default="samestep-gpu-benchmark.json")
    options = parser.parse_args(arguments)
    if unknown := set(options.only.split(",")) - MEASUREMENTS.keys():
        parser.error(f"--only {unknown.pop()} is none of {', '.join(MEASUREMENTS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure; return 0, 1 if a measurement failed, or 3 without a GPU."""
    options = parsed(arguments)
    here: Machine = find("cpu")
    if not options.rehearse and can_have_accelerators():
        here = found(options.device)
    if not (here.count or options.rehearse):
        print(f"No GPU is here: torch {here.torch} finds no device. Nothing was measured.")
        print(f"On a machine with GPUs these are measured: {options.only}")
        return NO_GPU
    print(here.describe(), flush=True)
    os.environ["SAMESTEP_BANNER"] = "0"
    device = torch.device("cpu" if options.rehearse else f"{here.type}:0")
    with tempfile.TemporaryDirectory(prefix="samestep-gpu-") as folder:
        context = Context(device=device, count=here.count or 2, shares=False, folder=Path(folder))
        run = Run(context, rehearsed() if options.rehearse else sizes(options.data_dir))
        done = measured(run, options.only.split(","))
    options.json.write_text(json.dumps({"machine": asdict(here), "measurements": done}, indent=1) + "\n")
    return int(any("error" in figures for figures in done.values()))


if __name__ == "__main__":
    sys.exit(main())
