"""Chooses the loader of an image set: from memory, or from disk."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from samestep.base.place import Place
from samestep.parallel.sharding.position import Position
from samestep.training.data.augmentation import Augment
from samestep.training.data.image_set import Images, ImageSet
from samestep.training.data.lazy_loader import LazyLoader
from samestep.training.data.loader import Batch, Loader


class Batches(Protocol):
    """Epochs of this rank's parts of global batches."""

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the (micro-)batches from `position` to the end of its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The options of a loader; the same on every rank."""

    batch_size: int
    """Samples per step, over all ranks."""
    accumulate: int = 1
    """Micro-batches per step."""
    shuffle: bool = True
    """Whether each epoch has its own random order."""
    augment: Augment | None = None
    """Augments batches of uint8 images."""
    dtype: torch.dtype = torch.float32
    """Dtype of the batches' images."""


def batches_of(
    images: Images, draw: Draw, *, place: Place, device: torch.device, workers: int | None = None
) -> Batches:
    """Return a loader of this rank's parts of global batches of `images`.

    Args:
        images: in memory, which are all moved to `device`, or on disk, which a DataLoader reads.
        draw: the options of the loader.
        place: of this rank.
        device: of the batches, on which they are normalized and augmented.
        workers: loader processes of this rank, for images on disk; None is its share of the cores.

    Raises:
        UsageError: a full batch has fewer samples than ranks.
    """
    options = {one.name: getattr(draw, one.name) for one in fields(draw)}
    if isinstance(images, ImageSet):
        return Loader(images.to(device), place=place, **options)
    return LazyLoader(images, place=place, device=device, workers=workers, **options)
