"""Generates random images of any shape, for measurements of training speed.

Its name is ``synthetic`` or ``synthetic:CxHxW,CLASSES,SAMPLES``; CLASSES and SAMPLES are optional.
"""

import re
from pathlib import Path

import torch

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.units import bytes_text
from samestep.training.data.image_set import ImageSet, Split

MAX_CLASSES = 2**20
"""Maximum number of classes."""


def _check_fits(spec: str, *, images: int, labels: int, classes: int) -> None:
    """Refuse images that do not fit into this machine's memory.

    Raises:
        UsageError: they do not fit, or there are too many classes; names the sizes.
    """
    if classes > MAX_CLASSES:
        raise UsageError(f"--data {spec} has {classes:,} classes; use {MAX_CLASSES:,} or fewer.")
    there = machine().memory_bytes
    if images + labels > there:
        raise UsageError(
            f"--data {spec} needs {bytes_text(images + labels)} for its images, and this machine has "
            f"{bytes_text(there)} of memory. Use fewer or smaller images."
        )


_COUNT = "([0-9]{1,18})"
_SPEC = re.compile(rf"synthetic(?::{_COUNT}x{_COUNT}x{_COUNT}(?:,{_COUNT}(?:,{_COUNT})?)?)?")
_USUAL = (3, 224, 224, 1000, 1280)  # ImageNet's channels, sides and classes; 40 batches of 32 samples
TEST_SAMPLES = 64  # few, because only training is measured


def load_synthetic(spec: str, split: Split, *, data_dir: Path | None = None) -> ImageSet:
    """Return a split of random images and labels, the same on every machine.

    Raises:
        UsageError: `spec` has another form, one of its numbers is 0, or the images do not fit into memory.
    """
    del data_dir
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"--data {spec} is invalid; write it as synthetic:3x224x224,1000,1280.")
    numbers = [None if text is None else int(text) for text in match.groups()]
    channels, height, width, classes, samples = (
        usual if number is None else number for number, usual in zip(numbers, _USUAL, strict=True)
    )
    if 0 in (channels, height, width, classes, samples):
        raise UsageError(f"--data {spec} has a 0; use numbers of 1 or more.")
    count = samples if split == "train" else min(samples, TEST_SAMPLES)
    _check_fits(spec, images=count * channels * height * width, labels=8 * count, classes=classes)
    draw = torch.Generator().manual_seed(0 if split == "train" else 1)
    return ImageSet(
        name=spec,
        split=split,
        images=torch.randint(
            0, 256, (count, channels, height, width), dtype=torch.uint8, generator=draw, device="cpu"
        ),
        labels=torch.randint(0, classes, (count,), generator=draw, device="cpu"),
        classes=tuple(str(number) for number in range(classes)),
        mean=(0.5,) * channels,
        std=(0.29,) * channels,  # of a uniform distribution over 0 .. 1: 1/sqrt(12)
    )
