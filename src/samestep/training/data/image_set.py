"""Defines a data set of images in memory, as one uint8 tensor."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import DataError
from samestep.training.data.lazy import LazyImages, check_subset

Split: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet:
    """Labeled images in the memory of one device.

    Raises:
        DataError: the shapes or dtypes of images and labels are wrong.
    """

    name: str
    split: Split
    images: Tensor
    """(samples, channels, height, width), uint8, as published."""
    labels: Tensor
    """(samples,), int64: indices into `classes`."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Mean per channel of the *training* split, with `white` scaled to 1.0."""
    std: tuple[float, ...]
    """Standard deviation, as `mean`."""
    white: int = 255
    """The largest possible value of a pixel."""

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
        check_subset(count, self)
        return replace(self, images=self.images[:count], labels=self.labels[:count])


Images: TypeAlias = ImageSet | LazyImages
"""Either type of image set: in memory, or read on demand."""
