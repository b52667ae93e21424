"""How fast do batches come: whole batches from memory, against a DataLoader that takes samples one by one.

Run: ``python benchmarks/loader.py [--data-dir DIR]`` (needs MNIST). One thread; both sides in turn, so that
a busy machine is busy for both. Prints samples per second (median of the rounds) and their ratio.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from samestep.base.folders import absolute
from samestep.parallel.sharding import Position
from samestep.training.data.augmentation import Augment, RandomCrop
from samestep.training.data.image_set import ImageSet
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.data.sets.registry import load

ROUNDS = 7
SAMPLES = 20_000
Pass = Callable[[int], int]
"""Draws all batches of an epoch; returns how many samples they held."""


class OneByOne(Dataset):
    """What a tutorial's script does: take an image, make it float, normalise it."""

    def __init__(self, images: ImageSet) -> None:
        self.images, self.labels = images.images, images.labels.tolist()
        self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (images.mean, images.std))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index].to(torch.float32).div(255)
        return image.sub_(self.mean).div_(self.std), self.labels[index]


def whole(images: ImageSet, batch_size: int, augment: Augment | None = None) -> Pass:
    loader = ImageLoader(images, LoaderOptions(batch_size=batch_size, augment=augment))
    return lambda epoch: sum(len(batch.labels) for batch in loader.epoch(Position(0, epoch)))


def one_by_one(images: ImageSet, batch_size: int) -> Pass:
    loader = DataLoader(OneByOne(images), batch_size=batch_size, shuffle=True)
    return lambda _: sum(len(labels) for _, labels in loader)


def samples_per_second(run: Pass, epoch: int) -> float:
    began = time.perf_counter()
    count = run(epoch)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=absolute, default=Path(__file__).parents[2] / "shared" / "data")
    images = load("mnist", "train", data_dir=parser.parse_args().data_dir).subset(SAMPLES)
    assert isinstance(images, ImageSet)
    torch.set_num_threads(1)

    print(" batch     one by one          whole   ratio     with shift   ratio   samples/s")
    for batch_size in (64, 1024):
        sides = [
            one_by_one(images, batch_size),
            whole(images, batch_size),
            whole(images, batch_size, RandomCrop(pad=2)),
        ]
        rounds = [[samples_per_second(run, epoch) for run in sides] for epoch in range(ROUNDS)]
        slow, fast, moved = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        ratios = [statistics.median(r[k] / r[0] for r in rounds) for k in (1, 2)]
        print(
            f"{batch_size:6} {slow:14,.0f} {fast:14,.0f} {ratios[0]:6.1f}x {moved:14,.0f} {ratios[1]:6.1f}x"
        )


if __name__ == "__main__":
    main()
