"""One door to all image sets: whether they lie in memory or are read as they are needed."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How an image set is drawn from; the same on every rank."""

    batch_size: int
    """Samples per step, over all ranks."""
    accumulate: int = 1
    """Micro-batches per step."""
    shuffle: bool = True
    """Whether each epoch has an order of its own."""
    augment: Augment | None = None
    """Changes uint8 images at random, as whole batches."""
    dtype: torch.dtype = torch.float32
    """What images become."""


def batches_of(
    images: Images, draw: Draw, *, place: Place, device: torch.device, workers: int | None = None
) -> Batches:
    """Return what draws this rank's shares of global batches of `images`, ready to compute with.

    Args:
        images: in memory, and then moved to `device` as a whole; or read by a DataLoader.
        draw: how.
        place: which rank this is.
        device: where batches are normalised and augmented, and end up.
        workers: loading processes of this rank, for a set that is read; None is its share of the processor.

    Raises:
        UsageError: a full batch is too small to give every rank a sample.
    """
    how = {one.name: getattr(draw, one.name) for one in fields(draw)}
    if isinstance(images, ImageSet):
        return Loader(images.to(device), place=place, **how)
    return LazyLoader(images, place=place, device=device, workers=workers, **how)
