"""MNIST to 98.5 %: the tutorials' way against samestep, one worker each, and where the factor comes from.

Run: ``python benchmarks/mnist.py --data-dir DIR [--repeats 3]``. Both ways train the same network on a CPU
and are judged after every epoch; the seconds are those of training, evaluation and reading the files left
out.

The tutorials' way is plain PyTorch: SGD at a constant rate, each image made float and normalised in
``__getitem__``, a DataLoader with 0 workers. samestep trains the recipe ``mnist --fast``. They take turns,
with another seed in each.

The account then switches one piece after the other on the tutorials' loop and times its steps, all forms in
turns. Pieces that take the same steps are told by the time of a sample; the rest of the factor is the number
of samples each way needs, which the schedule decides.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from samestep.base.folders import absolute
from samestep.ranks.world.solo import SoloWorld
from samestep.training.data.image_set import ImageSet
from samestep.training.data.sets.registry import load
from samestep.training.loop.training_loop import Callbacks, Training
from samestep.training.networks import ConvNet
from samestep.training.recipes.registry import find

MEAN, STD = 0.1307, 0.3081
TURN = 20
"""Steps of one form's turn in the account."""
Pair = tuple[Tensor, Tensor]


class OneByOne(Dataset):
    """What a tutorial's script does: take an image, make it float, normalise it."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index].to(torch.float32).div(255)
        return (image - MEAN) / STD, self.labels[index]


class Untouched(OneByOne):
    """The same without the transforms."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.labels[index]


def normalised(images: Tensor) -> Tensor:
    return images.to(torch.float32).mul_(1 / (255 * STD)).sub_(MEAN / STD)


@dataclass(frozen=True)
class Form:
    """A hand-written loop."""

    name: str
    loader: str = "one by one"
    batch_size: int = 100
    fused: bool | None = None
    channels_last: bool = False

    def epoch(self, images: Tensor, labels: Tensor) -> Iterator[Pair]:
        """Yield the batches of one epoch, in an order drawn from torch's generator."""
        if self.loader == "memory":
            for ids in torch.randperm(len(labels)).split(self.batch_size):
                yield normalised(images[ids]), labels[ids]
        elif self.loader == "whole batches":
            for batch, answers in DataLoader(Untouched(images, labels), self.batch_size, shuffle=True):
                yield normalised(batch), answers
        else:
            yield from DataLoader(OneByOne(images, labels), self.batch_size, shuffle=True)

    def learner(self) -> tuple[nn.Module, Callable[[Pair], None]]:
        """Return a new network, and a function that takes one step of it."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        model = ConvNet().to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=self.fused)

        def step(pair: Pair) -> None:
            images, labels = pair
            loss = F.cross_entropy(model(images.contiguous(memory_format=layout)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return model, step


TUTORIAL = Form("the tutorials' way")
FORMS = [
    TUTORIAL,
    normal := replace(TUTORIAL, name="+ normalise whole batches", loader="whole batches"),
    memory := replace(normal, name="+ take batches from memory, without DataLoader", loader="memory"),
    fused := replace(memory, name="+ fused SGD", fused=True),
    laid := replace(fused, name="+ channels-last", channels_last=True),
    replace(laid, name="+ batches of 128", batch_size=128),
]


@dataclass(frozen=True)
class Trained:
    """What one training took."""

    seconds: float
    samples: int
    accuracy: float


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        correct = sum(
            (model(normalised(part)).argmax(1) == answers).sum().item()
            for part, answers in zip(images.split(1000), labels.split(1000), strict=True)
        )
    model.train()
    return correct / len(labels)


def tutorial(train: ImageSet, test: ImageSet, seed: int, target: float, most: int) -> Trained:
    """Train the tutorials' way until the network is good enough, for at most so many epochs."""
    torch.manual_seed(seed)
    model, step = TUTORIAL.learner()
    seconds, samples = 0.0, 0
    for _ in range(most):
        began = time.perf_counter()
        for pair in TUTORIAL.epoch(train.images, train.labels):
            step(pair)
        seconds += time.perf_counter() - began
        samples += len(train)
        reached = accuracy(model, test.images, test.labels)
        if reached >= target:
            break
    return Trained(seconds, samples, reached)


def samestep(train: ImageSet, test: ImageSet, seed: int) -> Trained:
    """Train the fast recipe; it is judged at its end, where its learning rate has come down."""
    world = SoloWorld()
    settings = replace(find("mnist", fast=True).settings, seed=seed)
    training = Training(ConvNet, train_set=train, test_set=test, settings=settings, world=world)
    result = training.run(Callbacks.disabled(world))
    return Trained(result.seconds, settings.epochs * len(train), result.accuracy)


def account(train: ImageSet, rounds: int) -> dict[str, list[float]]:
    """Return seconds per sample of each form in each round."""
    torch.manual_seed(0)
    runs = {form.name: (form, form.learner()[1], endless(form, train)) for form in FORMS}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (form, step, batches) in runs.items():
            began = time.perf_counter()
            for _ in range(TURN):
                step(next(batches))
            if number:  # the first one warms up
                seconds[name].append((time.perf_counter() - began) / (TURN * form.batch_size))
    return seconds


def endless(form: Form, train: ImageSet) -> Iterator[Pair]:
    """Yield full batches for ever."""
    while True:
        for pair in form.epoch(train.images, train.labels):
            if len(pair[1]) == form.batch_size:
                yield pair


def report_account(seconds: dict[str, list[float]]) -> None:
    print("\nseconds of training per 60,000 samples      median   against the one before   against the first")
    values = list(seconds.items())
    for (name, own), (_, before) in zip(values, [values[0], *values], strict=False):
        step, total = (median_ratio(other, own) for other in (before, values[0][1]))
        print(f"{name:46} {60_000 * statistics.median(own):6.1f} {step:20.2f}x {total:22.2f}x")


def median_ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def report_races(races: list[tuple[Trained, Trained]], target: float) -> None:
    slow, fast = zip(*races, strict=True)
    ratios = [a.seconds / b.seconds for a, b in races]
    samples = statistics.median(a.samples / b.samples for a, b in races)
    print(
        json.dumps(
            {
                "target": target,
                "reached_by_all": all(one.accuracy >= target for pair in races for one in pair),
                "tutorial_s": [round(one.seconds, 2) for one in slow],
                "samestep_s": [round(one.seconds, 2) for one in fast],
                "ratio": [round(ratio, 2) for ratio in ratios],
                "median_ratio": round(statistics.median(ratios), 2),
                "because_of_fewer_samples": round(samples, 2),
                "because_of_faster_samples": round(statistics.median(ratios) / samples, 2),
                "threads": torch.get_num_threads(),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=absolute, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9, help="of the account")
    parser.add_argument("--target", type=float, default=0.985)
    parser.add_argument("--epochs", type=int, default=15, help="at most, of the tutorials' way")
    parser.add_argument("--subset", type=int, help="samples samestep trains on; by default all")
    parser.add_argument("--threads", type=int, help="by default torch's choice")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    train, test = (load("mnist", split, data_dir=options.data_dir) for split in ("train", "test"))
    assert isinstance(train, ImageSet)
    assert isinstance(test, ImageSet)
    part = train.subset(options.subset) if options.subset else train

    races = []
    for seed in range(options.repeats):
        ways = [
            lambda seed=seed: tutorial(train, test, seed, options.target, options.epochs),
            lambda seed=seed: samestep(part, test, seed),
        ]
        first = seed % 2
        outcomes = {number: ways[number]() for number in (first, 1 - first)}
        races.append((outcomes[0], outcomes[1]))
        print(f"seed {seed}: tutorial {races[-1][0]}, samestep {races[-1][1]}", flush=True)
    report_races(races, options.target)
    report_account(account(train, options.rounds))


if __name__ == "__main__":
    main()
