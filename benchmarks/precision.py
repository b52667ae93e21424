"""What precision, compiling and memory format are worth on this device, in samples per second against fp32.

Run: ``python benchmarks/precision.py [mnist cifar10 ...] [--fast] [--precision bf16 ...] [--rounds 9]``.
Takes the trainer's own steps, without an exchange, on one batch of random images of each recipe's size that
stays on the device. All variants take turns in one process, so that a busy machine is busy for all of them.
Prints the median of each, and of its ratio to plain fp32 turn by turn with the ratio's quartiles. What this
device or build cannot do is said in its row.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch

from samestep.base.errors import UsageError
from samestep.observe.step_reader import loop_clock
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.data.image_set import ImageSet
from samestep.training.data.loader import Batch, ImageLoader, LoaderOptions
from samestep.training.loop.learner import Learner
from samestep.training.loop.step import ReplicatedStep, compiled
from samestep.training.networks import build
from samestep.training.recipes.registry import Recipe, find
from samestep.training.settings import Settings

SHAPES = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "synthetic": (3, 224, 224),
}
WARM_UP = 3
Take = Callable[[int], None]
"""Takes so many steps."""
Turn = Callable[[], float]
"""Takes some steps and returns the seconds of one."""


@dataclass(frozen=True)
class Variant:
    """One way to compute the same network."""

    precision: str
    channels_last: bool
    compile: bool

    def __str__(self) -> str:
        words = [self.precision, "channels-last" * self.channels_last, "compiled" * self.compile]
        return " ".join(word for word in words if word)


def step_of(recipe: Recipe, variant: Variant, device: torch.device) -> Take:
    """Return what trains by the trainer's steps."""
    settings = replace(
        recipe.settings,
        schedule="constant",
        warmup=0.0,
        accumulate=1,
        augment="",
        precision=variant.precision,
        channels_last=variant.channels_last,
        compile=variant.compile,
    )
    make_model = partial(build, recipe.model, shape=SHAPES[recipe.data], classes=10)
    learner = Learner(make_model, settings, device=device, workers=1, steps_per_epoch=1)
    step = ReplicatedStep(
        learner=learner,
        settings=settings,
        forward=compiled(learner.model, settings),
        replicas=replicate(learner.model, SoloWorld(device=device)),
        clock=loop_clock(device),
    )
    batch = one_batch(recipe, settings, device, learner.precision.images)

    step.clock.start()

    def take(count: int) -> None:
        for _ in range(count):
            step(batch)
        step.clock.drain()

    return take


def one_batch(recipe: Recipe, settings: Settings, device: torch.device, dtype: torch.dtype) -> Batch:
    """Return a batch of random images; nothing is learnt from it."""
    draw = torch.Generator().manual_seed(0)
    channels, height, width = SHAPES[recipe.data]
    count = settings.batch_size
    images = ImageSet(
        name="random",
        split="train",
        images=torch.randint(0, 256, (count, channels, height, width), generator=draw, dtype=torch.uint8),
        labels=torch.randint(0, 10, (count,), generator=draw),
        classes=tuple("0123456789"),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )
    options = LoaderOptions(batch_size=count, dtype=dtype, shuffle=False)
    batches = ImageLoader(images, options, place=SoloWorld().place, device=device)
    return next(iter(batches.epoch()))


def turn_of(recipe: Recipe, variant: Variant, device: torch.device, seconds: float) -> Turn | UsageError:
    """Return a turn of about `seconds`, warmed up, or why there can be none."""
    try:
        take = step_of(recipe, variant, device)
    except UsageError as error:
        return error
    take(WARM_UP)
    count = max(1, round(seconds / timed(take, 1, device)))
    return lambda: timed(take, count, device)


def timed(take: Take, count: int, device: torch.device) -> float:
    """Return the seconds of one of `count` steps, the device's work included."""
    wait(device)
    began = time.perf_counter()
    take(count)
    wait(device)
    return (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(turns: dict[Variant, Turn], rounds: int) -> dict[Variant, list[float]]:
    """Return the seconds of a step in each round; who goes first changes."""
    seconds: dict[Variant, list[float]] = {variant: [] for variant in turns}
    order = list(turns)
    for number in range(rounds):
        first = number % len(order)
        for variant in order[first:] + order[:first]:
            seconds[variant].append(turns[variant]())
    return seconds


def report(seconds: dict[Variant, list[float]], batch_size: int) -> None:
    plain = next(iter(seconds.values()))
    for variant, values in seconds.items():
        ratios = [base / value for base, value in zip(plain, values, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rate = batch_size / statistics.median(values)
        print(f"  {variant!s:34} {rate:12,.0f} samples/s   {middle:5.2f} of fp32 ({low:.2f} .. {high:.2f})")


def run(recipe: Recipe, device: torch.device, options: argparse.Namespace) -> None:
    print(f"{recipe.name}: {recipe.model}, batch {recipe.settings.batch_size}, {device}", flush=True)
    compiling = [False] if options.no_compile else [False, True]
    choices = product(["fp32", *options.precision], [False, True], compiling)
    variants = dict.fromkeys(Variant(*choice) for choice in choices)
    tried = {variant: turn_of(recipe, variant, device, options.seconds) for variant in variants}
    turns = {variant: turn for variant, turn in tried.items() if not isinstance(turn, UsageError)}
    report(measure(turns, options.rounds), recipe.settings.batch_size)
    for variant in tried.keys() - turns.keys():
        print(f"  {variant!s:34} {tried[variant]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=["mnist", "cifar10"])
    parser.add_argument("--fast", action="store_true", help="the recipes' fast form")
    parser.add_argument("--precision", nargs="*", default=["bf16", "fp16", "bf16-true"], help="beside fp32")
    parser.add_argument("--no-compile", action="store_true", help="compiling takes minutes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    parser.add_argument("--threads", type=int, help="on a CPU; by default torch's choice")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for name in options.recipes:
        run(find(name, fast=options.fast), torch.device(options.device), options)


if __name__ == "__main__":
    main()
