"""Loads this rank's part of global batches of images that are read from disk by loader processes."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.base.signals import WARNINGS
from samestep.launchers.binding import processors_of_rank
from samestep.parallel.sharding.global_batches import micro_batches
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.sample_plan import Plan
from samestep.training.data.augmentation import Augment
from samestep.training.data.lazy import LazyImages
from samestep.training.data.loader import Batch
from samestep.training.data.loader_errors import FailedBatch, raise_if_failed
from samestep.training.data.normalise import Normalize
from samestep.training.data.sample_random import sample_words

_CPU = torch.device("cpu")


@dataclass(slots=True, eq=False)
class LazyLoader:
    """A loader that reads this rank's samples by torch's DataLoader, and augments batches on the device.

    Its batches equal those of `Loader` for the same images, with any number of ranks and loader processes.
    Loader processes persist between epochs. A resumed epoch skips its used samples without reading them.

    Raises:
        UsageError: a full batch has fewer samples than ranks. During an epoch: an image cannot be read
            (DataError).
    """

    images: LazyImages
    _: KW_ONLY
    batch_size: int
    """Samples per step, over all ranks."""
    place: Place = field(default_factory=Place)
    device: torch.device = _CPU
    shuffle: bool = True
    augment: Augment | None = None
    dtype: torch.dtype = torch.float32
    accumulate: int = 1
    """Micro-batches per step."""
    workers: int | None = None
    """Loader processes of this rank; None is its share of the cores."""
    plan: Plan = field(init=False, repr=False)
    _sampler: "_Ids" = field(init=False, repr=False)
    _loader: "DataLoader[Any]" = field(init=False, repr=False)
    _normalize: Normalize = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.plan = Plan(
            count=len(self.images), batch_size=self.batch_size, place=self.place, shuffle=self.shuffle
        )
        self._normalize = Normalize(self.images, self.dtype, self.device)
        self._sampler = _Ids()
        workers = loading_processes(self.place, self.device) if self.workers is None else self.workers
        self._loader = DataLoader(
            _ReadOrError(self.images),
            batch_sampler=self._sampler,
            collate_fn=_Stack(self.images.shape),
            num_workers=workers,
            worker_init_fn=_ignore_stop_signals,
            persistent_workers=workers > 0,
            pin_memory=self.device.type in ("cuda", "xpu"),
        )

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""
        return len(self.plan)

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` to the end of its epoch; see `Loader.epoch`.

        Raises:
            UsageError: `position` is beyond the end of this data set.
        """
        position = Position() if position is None else position
        steps = self.plan.steps(position)
        order = torch.from_numpy(self.plan.order(position))
        pairs = list(micro_batches(steps, self.accumulate))
        parts = [self.plan.share(micro) for _, micro in pairs]
        self._sampler.batches = [order[part.start : part.stop].tolist() for part in parts]
        read = map(raise_if_failed, self._loader)
        for (step, micro), ids, (images, labels) in zip(pairs, self._sampler.batches, read, strict=True):
            numbers = torch.tensor(ids, dtype=torch.int64)
            yield Batch(
                images=self._images(images, numbers, position),
                labels=labels.to(self.device, non_blocking=True),
                weight=self.plan.weight(micro, of=step.count),
                global_count=micro.count,
                ids=numbers,
                after=step.after,
                last_of_step=micro.stop == step.stop,
            )

    def _images(self, images: Tensor, ids: Tensor, position: Position) -> Tensor:
        images = images.to(self.device, non_blocking=True)
        if self.augment is not None:
            images = self.augment(images, sample_words(ids, position).to(self.device, non_blocking=True))
        return self._normalize(images)


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


class _Ids(Sampler[list[int]]):
    """The samples of each batch of the next epoch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


@dataclass(frozen=True, slots=True, eq=False)
class _ReadOrError(Dataset[tuple[Tensor, int] | FailedBatch]):
    """The images; the error in place of an image that cannot be read."""

    images: LazyImages

    def __getitem__(self, index: int) -> tuple[Tensor, int] | FailedBatch:
        try:
            return self.images[index]
        except UsageError as error:
            return FailedBatch(error)


@dataclass(frozen=True, slots=True)
class _Stack:
    """A collate function that also accepts an empty list."""

    shape: tuple[int, int, int]

    def __call__(
        self, samples: list[tuple[Tensor, int] | FailedBatch]
    ) -> tuple[Tensor, Tensor] | FailedBatch:
        read = []
        for sample in samples:
            if isinstance(sample, FailedBatch):
                return sample
            read.append(sample)
        images = [image for image, _ in read]
        labels = torch.tensor([label for _, label in read], dtype=torch.int64)
        return torch.stack(images) if images else torch.empty((0, *self.shape), dtype=torch.uint8), labels
