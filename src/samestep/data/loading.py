"""One door to all image sets: whether they lie in memory or are read as they are needed."""

from collections.abc import Iterator
from typing import Protocol

import torch

from samestep.base.place import Place
from samestep.data.augment import Augment
from samestep.data.image_set import Images, ImageSet
from samestep.data.lazy_loader import LazyLoader
from samestep.data.loader import Batch, Loader
from samestep.sharding.position import Position


class Batches(Protocol):
    """Epochs of this rank's shares of global batches."""

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the (micro-)batches from `position` to the end of its epoch."""


def batches_of(
    images: Images,
    *,
    batch_size: int,
    place: Place,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    shuffle: bool = True,
    augment: Augment | None = None,
    accumulate: int = 1,
    workers: int | None = None,
) -> Batches:
    """Return what draws this rank's shares of global batches of `images`, ready to compute with.

    Args:
        images: in memory, and then moved to `device` as a whole; or read by a DataLoader.
        batch_size: samples per step, over all ranks.
        place: which rank this is.
        device: where batches are normalised and augmented, and end up.
        dtype: what images become.
        shuffle: draw each epoch in an order of its own.
        augment: changes uint8 images at random, as whole batches.
        accumulate: micro-batches per step.
        workers: loading processes of this rank, for a set that is read; None is its share of the processor.

    Raises:
        UsageError: a full (micro-)batch is too small to give every rank a sample.
    """
    if isinstance(images, ImageSet):
        return Loader(
            images.to(device),
            batch_size=batch_size,
            place=place,
            shuffle=shuffle,
            augment=augment,
            dtype=dtype,
            accumulate=accumulate,
        )
    return LazyLoader(
        images,
        batch_size=batch_size,
        place=place,
        device=device,
        shuffle=shuffle,
        augment=augment,
        dtype=dtype,
        accumulate=accumulate,
        workers=workers,
    )
