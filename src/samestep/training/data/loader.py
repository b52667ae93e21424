"""Draws this rank's parts of global batches from images in memory or on disk.

All ranks compute the same order and take their part of each batch, so that the samples of a step do not
depend on the number of ranks. Images on disk are read by torch's DataLoader; the batches are the same.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.base.signals import WARNINGS
from samestep.launchers.binding import processors_of_rank
from samestep.parallel.sharding import Plan, Position
from samestep.training.data.augmentation import Augment, sample_words
from samestep.training.data.image_set import Images, ImageSet, LazyImages
from samestep.training.data.sharded_loader import FailedBatch, raise_if_failed

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's part of one global batch; can be empty."""

    images: Tensor  # (local, channels, height, width), normalized
    labels: Tensor  # (local,), int64
    weight: float  # weight of this rank's mean in an average over ranks: local * N / samples of the step
    global_count: int  # samples of the (micro-)batch over all ranks
    ids: Tensor  # (local,), int64: indices of the samples in the data set
    after: Position  # the position in the data after the step
    last_of_step: bool = True  # whether it is the last micro-batch of its step

    @property
    def local_count(self) -> int:
        """Samples of this rank."""
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of a loader; the same on every rank."""

    batch_size: int
    """Samples per step, over all ranks."""
    accumulate: int = 1
    """Micro-batches per step."""
    shuffle: bool = True
    """Whether the order is random; without it, each sample occurs in published order."""
    reshuffle: bool = True
    """Whether each epoch has a random order of its own; without it, all have that of the first."""
    augment: Augment | None = None
    """Augments batches of uint8 images."""
    dtype: torch.dtype = torch.float32
    """Dtype of the batches' images."""


class ImageLoader:
    """A loader of this rank's parts of global batches, which are normalized and augmented on `device`.

    Loader processes persist between epochs. A resumed epoch skips its used samples without reading them.
    Images in memory are all moved to `device`. `workers` are loader processes of this rank, for images on
    disk; None is its share of the cores.

    Raises:
        UsageError: a full batch has fewer samples than ranks. DataError in an epoch: an image cannot be read.
    """

    def __init__(
        self,
        images: Images,
        options: LoaderOptions,
        *,
        place: Place | None = None,
        device: torch.device = _CPU,
        workers: int | None = None,
    ) -> None:
        place = Place() if place is None else place
        self._options, self._device = options, device
        self._plan = Plan(
            count=len(images), batch_size=options.batch_size, place=place, shuffle=options.shuffle
        )
        # (x / white - mean) / std = x * scale - shift, in two passes over the batch
        mean, std = (
            torch.tensor(moments, dtype=torch.float64, device="cpu").view(1, -1, 1, 1)
            for moments in (images.mean, images.std)
        )
        self._scale = (1 / (images.white * std)).to(device, options.dtype)
        self._shift = (mean / std).to(device, options.dtype)
        self._in_memory = images.to(device) if isinstance(images, ImageSet) else None
        self._on_disk = None if isinstance(images, ImageSet) else _DiskReader(images, place, device, workers)

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""
        return len(self._plan)

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` (by default the first epoch's start) to the end of its epoch.

        The micro-batches of a step follow each other; their number is the same on every rank, and some can
        be empty.

        Raises:
            UsageError: `position` is beyond the end of this data set.
        """
        position = Position() if position is None else position
        parts = list(self._plan.parts(position, accumulate=self._options.accumulate))
        ordered = position if self._options.reshuffle else replace(position, epoch=0)
        order = torch.from_numpy(self._plan.order(ordered))
        if self._in_memory is not None:
            order = order.to(self._device)
        words = None if self._options.augment is None else sample_words(order, position)
        drawn = self._read([order[part.start : part.stop] for part in parts])
        for part, (ids, images, labels) in zip(parts, drawn, strict=True):
            yield Batch(
                images=self._prepared(images, None if words is None else words[part.start : part.stop]),
                labels=labels.to(self._device, non_blocking=True),
                weight=part.weight,
                global_count=part.global_count,
                ids=ids,
                after=part.after,
                last_of_step=part.last_of_step,
            )

    def _read(self, ids: list[Tensor]) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Return ids, images and labels of each batch."""
        if self._on_disk is not None:
            return self._on_disk.read(ids)
        data = self._in_memory
        assert data is not None
        return (
            (batch_ids, data.images.index_select(0, batch_ids), data.labels.index_select(0, batch_ids))
            for batch_ids in ids
        )

    def _prepared(self, images: Tensor, words: Tensor | None) -> Tensor:
        """Return uint8 images on the device of the batches, augmented and normalized."""
        images = images.to(self._device, non_blocking=True)
        if self._options.augment is not None and words is not None:
            images = self._options.augment(images, words.to(self._device, non_blocking=True))
        return images.to(self._options.dtype).mul_(self._scale).sub_(self._shift)


class _DiskReader:
    """Reads batches of images by torch's DataLoader, whose processes read ahead."""

    def __init__(self, images: LazyImages, place: Place, device: torch.device, workers: int | None) -> None:
        self._ids: list[list[int]] = []  # the samples of each batch of the next epoch
        workers = loading_processes(place, device) if workers is None else workers
        self._loader: DataLoader[Any] = DataLoader(
            range(len(images)),  # type: ignore[arg-type]  # the ids; `_ReadBatch` reads a batch of them
            batch_sampler=self._ids,
            collate_fn=_ReadBatch(images),
            num_workers=workers,
            worker_init_fn=_ignore_stop_signals,
            persistent_workers=workers > 0,
            pin_memory=device.type in ("cuda", "xpu"),
        )

    def read(self, ids: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the ids, images and labels of each batch."""
        self._ids[:] = [batch_ids.tolist() for batch_ids in ids]
        for batch_ids, batch in zip(ids, self._loader, strict=True):
            yield batch_ids, *raise_if_failed(batch)


@dataclass(frozen=True, slots=True, eq=False)
class _ReadBatch:
    """A collate function that reads the images of a batch; returns the error if one cannot be read."""

    images: LazyImages

    def __call__(self, ids: list[int]) -> tuple[Tensor, Tensor] | FailedBatch:
        try:
            read = [self.images[index] for index in ids]
        except UsageError as error:
            return FailedBatch(error)
        images = [image for image, _ in read]
        labels = torch.tensor([label for _, label in read], dtype=torch.int64, device="cpu")
        empty = torch.empty((0, *self.images.shape), dtype=torch.uint8, device="cpu")
        return torch.stack(images) if images else empty, labels


def loading_processes(place: Place, device: torch.device) -> int:
    """Return the default number of loader processes of one rank: its share of the cores.

    It is half of that share if the rank computes on the CPU as well.
    """
    share = processors_of_rank(place.local_size)
    return share if device.type != "cpu" else max(1, share // 2)


def _ignore_stop_signals(_: int) -> None:
    """Make a loader process ignore stop signals to its process group, because its rank finishes the step.

    SIGTERM from its rank still ends it: multiprocessing sends that when the rank exits. If the rank dies,
    torch's watchdog ends it. On macOS the sender of a signal is unknown, so SIGTERM keeps torch's handler.
    """
    for number in WARNINGS:
        signal.signal(number, signal.SIG_IGN)
    rank = multiprocessing.parent_process()
    if sys.platform != "darwin" and rank is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for all threads, which start later
        threading.Thread(target=_exit_on_sigterm, args=[rank.pid], daemon=True).start()


def _exit_on_sigterm(sender: int | None) -> None:
    if sys.platform != "darwin":
        while signal.sigwaitinfo([signal.SIGTERM]).si_pid != sender:
            pass
        os._exit(0)
