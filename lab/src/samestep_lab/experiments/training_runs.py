"""Trains small networks on the ranks of an experiment."""

from dataclasses import asdict
from typing import Any

import torch

from samestep.base.errors import UsageError
from samestep.ranks.world.protocol import World
from samestep.training.data.image_set import ImageSet
from samestep.training.data.sets.registry import load
from samestep.training.loop.training_loop import Callbacks, Training
from samestep.training.networks import build
from samestep.training.settings import Settings
from samestep_lab.experiments.experiment import Setup

SUBSET = 2000
"""Maximum number of training samples."""


def image_sets(setup: Setup, samples: int = SUBSET) -> tuple[ImageSet, ImageSet]:
    """Return the first training samples, at most `samples`, and all test samples.

    Raises:
        UsageError: there is no such data set, or it does not fit into memory.
    """
    train_set, test_set = (load(setup.data, split, data_dir=setup.data_dir) for split in ("train", "test"))
    if not isinstance(train_set, ImageSet) or not isinstance(test_set, ImageSet):
        raise UsageError(
            f"--data {setup.data} is read from files; use digits, mnist, fashion-mnist or cifar10, which fit "
            "into memory."
        )
    return train_set.subset(min(samples, len(train_set))), test_set


def training_of(world: World, sets: tuple[ImageSet, ImageSet], settings: Settings) -> Training:
    """Return a training of the convnet as `samestep train` runs it."""
    train_set, test_set = sets
    return Training(
        lambda: build("convnet", shape=train_set.shape, classes=len(train_set.classes)),
        train_set=train_set,
        test_set=test_set,
        settings=settings,
        world=world,
    )


def train_each(world: World, sets: tuple[ImageSet, ImageSet], chosen: list[Settings]) -> list[dict[str, Any]]:
    """Train once with each of the settings; return the results by name."""
    callbacks = Callbacks.disabled(world)
    return [asdict(training_of(world, sets, settings).run(callbacks)) for settings in chosen]


def pixels(images: ImageSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normalized images and their labels."""
    mean, std = (torch.tensor(by_channel).view(1, -1, 1, 1) for by_channel in (images.mean, images.std))
    return (images.images / images.white - mean) / std, images.labels
