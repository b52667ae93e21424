"""Reads the classification data sets of torchvision, such as ``torchvision:CIFAR100``.

Images are read on demand. ``torchvision:NAME@SIDE`` resizes them to squares of SIDE pixels; without it all
must have the size of the first one.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import DataError, UsageError
from samestep.base.folders import user_cache
from samestep.training.data.image_set import LazyImages, Split, checked_labels, checked_side

_SPEC = re.compile(r"torchvision:(\w+)(?:@([1-9][0-9]{0,17}))?")
_SAMPLED = 1000  # number of images from which mean and standard deviation are computed


@dataclass(frozen=True, slots=True)
class ReadSample:
    """A reader of a data set whose items are (PIL image, label)."""

    data: Any
    side: int | None

    def __call__(self, index: int) -> Tensor:
        """Return image `index`, uint8 (channels, height, width)."""
        from PIL import ImageOps

        image, _ = self.data[index]
        if self.side is not None:
            image = ImageOps.fit(image, (self.side, self.side))
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return torch.from_numpy(pixels.astype(np.uint8))


def load_torchvision(spec: str, split: Split, *, data_dir: Path | None = None) -> LazyImages:
    """Return one split of a data set of torchvision; None as `data_dir` downloads its files.

    Raises:
        UsageError: torchvision is not installed, or has no such data set.
        DataError: the files are missing, or cannot be downloaded.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"--data {spec} is invalid; write it as torchvision:CIFAR100 or torchvision:STL10@64."
        )
    name, side = match[1], None if match[2] is None else checked_side(int(match[2]), spec)
    root = data_dir or user_cache() / "torchvision"
    data = _open(name, split, root, download=data_dir is None)
    read = ReadSample(data, side)
    mean, std = _moments(ReadSample(_open(name, "train", root, download=False), side))
    labels = _labels(data)
    classes = tuple(map(str, getattr(data, "classes", None) or range(max(labels) + 1)))
    labels = checked_labels(labels, classes=len(classes), where=f"{name} in {root}").tolist()
    first = read(0)
    channels, height, width = first.shape
    return LazyImages(
        name=spec,
        split=split,
        read=read,
        labels=labels,
        classes=classes,
        shape=(channels, height, width),
        mean=mean,
        std=std,
    )


def _open(name: str, split: Split, root: Path, *, download: bool) -> Any:
    if find_spec("torchvision") is None:
        raise UsageError("--data torchvision:... needs torchvision: pip install 'samestep[vision]'.")
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise UsageError(
            f"torchvision cannot be imported ({error}). Install the one for torch {torch.__version__}."
        ) from None
    kind = getattr(datasets, name, None) if name in getattr(datasets, "__all__", ()) else None
    if kind is None:
        raise UsageError(f"torchvision has no data set {name}.")
    parameters = inspect.signature(kind).parameters
    which = {"train": split == "train"} if "train" in parameters else {"split": split}
    if not {"download", *which} <= set(parameters):
        raise UsageError(f"torchvision's {name} has no training and test split of labeled images.")
    try:
        return kind(str(root), download=download, **which)
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"torchvision cannot open {name} in {root}: {error}") from None


def _labels(data: Any) -> Sequence[int]:
    for name in ("targets", "labels", "_labels"):
        found = getattr(data, name, None)
        if found is not None:
            return [int(label) for label in found]
    return [int(label) for _, label in data]


def _moments(read: ReadSample) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel, with white as 1.0, of evenly chosen images."""
    count = len(read.data)
    chosen = range(0, count, max(1, count // _SAMPLED))
    pixels = torch.cat([read(index).flatten(1) for index in chosen], 1).double() / 255
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1, correction=0).clamp(min=1e-3).tolist())
