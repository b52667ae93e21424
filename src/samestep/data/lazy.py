"""A data set of images that are read when they are needed."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from samestep.base.errors import DataError, UsageError

ReadImage: TypeAlias = Callable[[int], Tensor]
"""Returns image number so and so, uint8 (channels, height, width)."""


class LazyImages(Dataset[tuple[Tensor, int]]):
    """Labelled images that are too many to lie in memory, each read by itself.

    Args:
        name: of the set.
        split: "train" or "test".
        read: reads one image; runs in loading processes.
        labels: of each image, indices into `classes`.
        classes: their names.
        shape: channels, height and width of every image as `read` returns it.
        mean: per channel, of the training split, on the scale where `white` is 1.
        std: as `mean`.
    """

    white = 255

    def __init__(
        self,
        *,
        name: str,
        split: str,
        read: ReadImage,
        labels: Sequence[int],
        classes: tuple[str, ...],
        shape: tuple[int, int, int],
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        self.name, self.split = name, split
        self.read = read
        self.labels = labels
        self.classes = classes
        self.shape = shape
        self.mean, self.std = mean, std

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
        return LazyImages(
            name=self.name,
            split=self.split,
            read=self.read,
            labels=self.labels[:count],
            classes=self.classes,
            shape=self.shape,
            mean=self.mean,
            std=self.std,
        )
