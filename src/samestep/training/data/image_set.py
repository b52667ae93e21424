"""Defines data sets of labeled images, in memory or read on demand, and checks their labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samestep.base.errors import DataError, UsageError

Split: TypeAlias = Literal["train", "test"]
ReadImage: TypeAlias = Callable[[int], Tensor]
"""Maps an index to the image, uint8 (channels, height, width)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Described:
    """The fields of labeled images, wherever they are."""

    name: str
    split: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # mean per channel of the *training* split, with `white` scaled to 1.0
    std: tuple[float, ...]  # standard deviation, as `mean`
    white: int = 255  # the largest possible value of a pixel

    def _check_subset(self, count: int, total: int) -> None:
        if not 1 <= count <= total:
            raise UsageError(
                f"a subset of {count} samples: {self.name} {self.split} has {total}. Use 1 .. {total}."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet(_Described):
    """Labeled images in the memory of one device.

    Raises:
        DataError: the shapes or dtypes of images and labels are wrong.
    """

    images: Tensor  # (samples, channels, height, width), uint8, as published
    labels: Tensor  # (samples,), int64: indices into `classes`

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if len(images) != len(labels):
            raise DataError(f"{self.name} {self.split}: {len(images)} images but {len(labels)} labels")
        if images.dtype != torch.uint8 or images.ndim != 4 or labels.dtype != torch.int64:
            raise DataError(
                f"{self.name} {self.split}: images must be uint8 (samples, channels, height, width) "
                f"and labels int64, found {images.dtype} {tuple(images.shape)} and {labels.dtype}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same set on `device`."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, count: int) -> "ImageSet":
        """Return the first `count` samples, in published order.

        Classes are not balanced, and `mean` and `std` stay those of the whole training split.

        Raises:
            UsageError: there are fewer samples.
        """
        self._check_subset(count, len(self))
        return replace(self, images=self.images[:count], labels=self.labels[:count])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LazyImages(_Described):
    """Labeled images that do not fit into memory, each read on demand."""

    read: ReadImage  # reads one image; runs in loader processes
    labels: Sequence[int]  # indices into `classes`
    shape: tuple[int, int, int]  # channels, height and width of every image as `read` returns it

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one image and its label.

        Raises:
            DataError: the image has another shape than the data set.
        """
        image = self.read(index)
        if image.dtype != torch.uint8 or tuple(image.shape) != self.shape:
            raise DataError(
                f"{self.name} {self.split}: image {index} is {image.dtype} {tuple(image.shape)}, "
                f"expected uint8 {self.shape}"
            )
        return image, self.labels[index]

    def subset(self, count: int) -> "LazyImages":
        """Return the first `count` samples; see `ImageSet.subset`."""
        self._check_subset(count, len(self))
        return replace(self, labels=self.labels[:count])


Images: TypeAlias = ImageSet | LazyImages
"""Either type of image set: in memory, or read on demand."""

_LONGEST = 40  # maximum characters of a label in a message


def checked_labels(labels: Sequence[Any] | NDArray[Any], *, classes: int, where: object) -> NDArray[np.int64]:
    """Return labels as an array.

    Raises:
        DataError: a label is not an integer from 0 to the last class; names the first one.
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "ui" and labels.ndim == 1:
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        index = int(wrong[0]) if len(wrong) else None
    else:
        index = next((k for k, label in enumerate(labels) if not _is_class(label, classes)), None)
    if index is None:
        return np.asarray(labels, dtype=np.int64)
    label = str(labels[index])[:_LONGEST]
    raise DataError(
        f"{where}: the label of image {index} is {label}, and classes are numbered from 0 to {classes - 1}. "
        "Use the published file, or correct the label."
    )


def _is_class(label: Any, classes: int) -> bool:
    is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
    return is_number and bool(0 <= label < classes)
