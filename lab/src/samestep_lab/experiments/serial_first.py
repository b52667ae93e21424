"""Measures what data path, memory format, precision and compiler are worth on one worker."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from samestep.base.errors import UsageError
from samestep.base.units import rate_text, seconds_text
from samestep.bench.figures import as_good, best_text, quartiles
from samestep.bench.measurement import in_rounds
from samestep.bench.step_times import Problem
from samestep.ranks.world.protocol import World
from samestep.training.data.image_set import ImageSet
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.loop.learner import in_memory_format
from samestep.training.loop.step import compiled
from samestep.training.networks import build
from samestep.training.settings import Settings
from samestep_lab.experiments.experiment import Outcome, Setup, Table
from samestep_lab.experiments.training_runs import image_sets, pixels

BASE = Settings(epochs=1, batch_size=16, lr=0.01)
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "channels_last": {"channels_last": True},
    "bf16 autocast": {"precision": "bf16"},
    "torch.compile": {"compile": True},
}
ROUNDS, STEPS, BATCH = 3, 2, 64


class Samples(Dataset[Any]):
    """A data set that normalizes each sample when it is read, as a transform does."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        all_, part = self._images, slice(index, index + 1)
        images, labels = pixels(replace(all_, images=all_.images[part], labels=all_.labels[part]))
        return images[0], labels[0]


def make_step(problem: Problem, settings: Settings) -> Callable[[], None]:
    """Return a training step with these settings.

    Raises:
        UsageError: this machine cannot compile the model.
    """
    images, labels = problem.batch(rank=0)
    if settings.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    model = in_memory_format(build(problem.model, shape=problem.images, classes=10), settings)
    forward = compiled(model, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    is_half = settings.precision == "bf16"

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if is_half else nullcontext():
            loss = F.cross_entropy(forward(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def on_rank(
    world: World, problem: Problem, names: list[str], images: ImageSet, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return seconds per step by change, and seconds per sample by data path, one for each round."""
    del world
    steps: dict[str, Callable[[], None]] = {}
    for name in names:
        try:
            steps[name] = make_step(problem, replace(BASE, **CHANGES[name]))
        except UsageError:  # no compiler
            continue
        steps[name]()  # compiles, and warms up
        steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in in_rounds(list(steps), rounds):
        began = time.perf_counter()
        for _ in range(STEPS):
            steps[name]()
        times[name].append((time.perf_counter() - began) / STEPS)
    plain, gathered = DataLoader(Samples(images), BATCH, shuffle=True), LoaderOptions(batch_size=BATCH)
    paths: dict[str, Callable[[], object]] = {
        "DataLoader, sample by sample": lambda: list(plain),
        "gathered and normalized by the batch": lambda: list(ImageLoader(images, gathered).epoch()),
    }
    loading: dict[str, list[float]] = {name: [] for name in paths}
    for name in in_rounds(list(paths), rounds):
        began = time.perf_counter()
        paths[name]()
        loading[name].append((time.perf_counter() - began) / len(images))
    return times, loading


def run(
    setup: Setup, *, model: str = "resnet9:16", changes: tuple[str, ...] = (*CHANGES,), rounds: int = ROUNDS
) -> Outcome:
    """Run the experiment."""
    problem = Problem(model=model, batch_per_worker=BASE.batch_size, shape=(3, 32, 32))
    images, _ = image_sets(setup, 1000)
    times, loading = setup.ranks(on_rank, 1, problem, list(changes), images, rounds)[0]
    first = median(times[changes[0]])
    rows = [
        (
            name,
            seconds_text(median(taken)),
            " - ".join(map(seconds_text, quartiles(taken))),
            f"{first / median(taken):.2f}x",
        )
        for name, taken in times.items()
    ]
    rows += [(name, "-", "-", "no compiler here") for name in changes if name not in times]
    slow, fast = (median(taken) for taken in loading.values())
    paths = [(name, rate_text(1 / median(taken), "samples")) for name, taken in loading.items()]
    best_first = sorted(times, key=lambda name: median(times[name]))
    best = as_good(best_first, lambda name: quartiles(times[name]))
    if changes[0] in best:
        answer = "no change is clearly faster: the quartiles overlap"
    else:
        speed = f"{first / median(times[best[0]]):.2f} times the speed without changes"
        answer = f"the fastest is {best[0]}, {speed}"
        answer += f" ({best_text(best)})" if len(best) > 1 else ""
    return Outcome(
        tables=[
            Table(head=("change", "step", "quartiles", "speed"), rows=rows, title=f"Steps of {model}"),
            Table(head=("data path", "speed"), rows=paths, title=f"Loading {images.name}"),
        ],
        measured=(
            f"On one worker {answer}; "
            f"gathering batches loads {slow / fast:.0f} times as fast as sample by sample."
        ),
        values={
            "step_s": {
                name: {"median": median(taken), "quartiles": quartiles(taken)}
                for name, taken in times.items()
            },
            "loading_s_per_sample": {name: median(taken) for name, taken in loading.items()},
        },
    )
