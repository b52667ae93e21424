"""A data set of images as a value: one uint8 tensor."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from samestep.base.errors import DataError, UsageError
from samestep.data.lazy import LazyImages

Split: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet:
    """Labelled images, whole in memory, on one device.

    Raises:
        DataError: images and labels do not belong together.
    """

    name: str
    split: Split
    images: Tensor
    """(samples, channels, height, width), uint8, as published."""
    labels: Tensor
    """(samples,), int64: indices into `classes`."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Per channel, of the *training* split, on the scale where `white` is 1.0."""
    std: tuple[float, ...]
    """As `mean`."""
    white: int = 255
    """The largest value a pixel can have."""

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

        A smaller subset is part of a larger one. Nothing is balanced: the named sets are published well
        mixed. `mean` and `std` stay those of the whole training split.

        Raises:
            UsageError: there are not that many samples.
        """
        if not 1 <= count <= len(self):
            raise UsageError(
                f"a subset of {count} samples: {self.name} {self.split} holds {len(self)}. "
                f"Use 1 .. {len(self)}."
            )
        return replace(self, images=self.images[:count], labels=self.labels[:count])


Images: TypeAlias = ImageSet | LazyImages
"""Either kind of image set: in memory, or read as it is needed."""
