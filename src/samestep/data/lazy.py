"""A data set of images that are read when they are needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from samestep.base.errors import DataError, UsageError

ReadImage: TypeAlias = Callable[[int], Tensor]
"""Returns image number so and so, uint8 (channels, height, width)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LazyImages(Dataset[tuple[Tensor, int]]):
    """Labelled images that are too many to lie in memory, each read by itself."""

    name: str
    split: str
    """"train" or "test"."""
    read: ReadImage
    """Reads one image; runs in loading processes."""
    labels: Sequence[int]
    """Of each image: indices into `classes`."""
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    """Channels, height and width of every image as `read` returns it."""
    mean: tuple[float, ...]
    """Per channel, of the training split, on the scale where `white` is 1."""
    std: tuple[float, ...]
    """As `mean`."""
    white: int = 255
    """The largest value a pixel can have."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one image and its label.

        Raises:
            DataError: the image is not of the shape of the set.
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
            UsageError: there are not that many.
        """
        if not 1 <= count <= len(self):
            raise UsageError(
                f"a subset of {count} samples: {self.name} {self.split} holds {len(self)}. "
                f"Use 1 .. {len(self)}."
            )
        return replace(self, labels=self.labels[:count])
