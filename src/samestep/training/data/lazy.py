"""Defines a data set of images that are read on demand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from samestep.base.errors import DataError, UsageError

ReadImage: TypeAlias = Callable[[int], Tensor]
"""Maps an index to the image, uint8 (channels, height, width)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LazyImages(Dataset[tuple[Tensor, int]]):
    """Labeled images that do not fit into memory, each read on demand."""

    name: str
    split: str
    """"train" or "test"."""
    read: ReadImage
    """Reads one image; runs in loading processes."""
    labels: Sequence[int]
    """Labels of the images: indices into `classes`."""
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    """Channels, height and width of every image as `read` returns it."""
    mean: tuple[float, ...]
    """Mean per channel of the training split, with `white` scaled to 1."""
    std: tuple[float, ...]
    """Standard deviation, as `mean`."""
    white: int = 255
    """The largest possible value of a pixel."""

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
        """Return the first `count` samples.

        Raises:
            UsageError: there are fewer samples.
        """
        check_subset(count, self)
        return replace(self, labels=self.labels[:count])


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str: ...

    def __len__(self) -> int: ...


def check_subset(count: int, images: _Named) -> None:
    """Refuse a subset that is empty or larger than the data set.

    Raises:
        UsageError: names both sizes.
    """
    if not 1 <= count <= len(images):
        raise UsageError(
            f"a subset of {count} samples: {images.name} {images.split} has {len(images)}. "
            f"Use 1 .. {len(images)}."
        )
