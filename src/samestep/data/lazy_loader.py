"""Global batches of images that loading processes read, and this rank's slice of each."""

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
from samestep.data.augment import Augment
from samestep.data.draws import sample_words
from samestep.data.failed import Failed, unless_failed
from samestep.data.lazy import LazyImages
from samestep.data.loader import Batch
from samestep.data.normalise import Normalise
from samestep.sharding.batches import micro_batches
from samestep.sharding.plan import Plan
from samestep.sharding.position import Position
from samestep.world.binding import processors_of_rank

_CPU = torch.device("cpu")


@dataclass(slots=True, eq=False)
class LazyLoader:
    """Reads this rank's samples through torch's DataLoader; all else is done to whole batches on the device.

    The same batches as `Loader` would draw of the same images, at any number of ranks and of loading
    processes. These stay from epoch to epoch; a resumed epoch reads nothing that was used before.

    Raises:
        UsageError: a full batch is too small to give every rank a sample. While reading, an image cannot be
            read (DataError).
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
    """Loading processes of this rank; None is its share of the processor."""
    plan: Plan = field(init=False, repr=False)
    _sampler: "_Ids" = field(init=False, repr=False)
    _loader: "DataLoader[Any]" = field(init=False, repr=False)
    _normalise: Normalise = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.plan = Plan(
            count=len(self.images), batch_size=self.batch_size, place=self.place, shuffle=self.shuffle
        )
        self._normalise = Normalise(self.images, self.dtype, self.device)
        self._sampler = _Ids()
        workers = loading_processes(self.place, self.device) if self.workers is None else self.workers
        self._loader = DataLoader(
            _Told(self.images),
            batch_sampler=self._sampler,
            collate_fn=_Stack(self.images.shape),
            num_workers=workers,
            worker_init_fn=_outlive_a_stop,
            persistent_workers=workers > 0,
            pin_memory=self.device.type in ("cuda", "xpu"),
        )

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return len(self.plan)

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` to the end of its epoch; see `Loader.epoch`.

        Raises:
            UsageError: `position` lies beyond the end of this data set.
        """
        position = Position() if position is None else position
        steps = self.plan.steps(position)
        order = torch.from_numpy(self.plan.order(position))
        pairs = list(micro_batches(steps, self.accumulate))
        parts = [self.plan.share(micro) for _, micro in pairs]
        self._sampler.batches = [order[part.start : part.stop].tolist() for part in parts]
        read = map(unless_failed, self._loader)
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
        return self._normalise(images)


def loading_processes(place: Place, device: torch.device) -> int:
    """Return how many loading processes one rank may have: its share of the processor's cores.

    Half of it where the rank computes on the processor as well.
    """
    share = processors_of_rank(place.local_size)
    return share if device.type != "cpu" else max(1, share // 2)


def _outlive_a_stop(_: int) -> None:
    """Let a loading process go on when its whole process group is asked to stop: its rank finishes the step.

    SIGTERM from the rank itself ends it as ever: so multiprocessing ends what is left when the rank exits. If
    the rank dies, torch's watchdog ends it. On macOS nobody tells who sent a signal: SIGTERM stays torch's.
    """
    for number in WARNINGS:
        signal.signal(number, signal.SIG_IGN)
    rank = multiprocessing.parent_process()
    if sys.platform != "darwin" and rank is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for all threads: they begin after this
        threading.Thread(target=_end_when_told, args=[rank.pid], daemon=True).start()


def _end_when_told(by: int | None) -> None:
    if sys.platform != "darwin":
        while signal.sigwaitinfo([signal.SIGTERM]).si_pid != by:
            pass
        os._exit(0)


class _Ids(Sampler[list[int]]):
    """The samples of each batch of the epoch to come."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


@dataclass(frozen=True, slots=True, eq=False)
class _Told(Dataset[tuple[Tensor, int] | Failed]):
    """The images; of one that cannot be read, the error."""

    images: LazyImages

    def __getitem__(self, index: int) -> tuple[Tensor, int] | Failed:
        try:
            return self.images[index]
        except UsageError as error:
            return Failed(error)


@dataclass(frozen=True, slots=True)
class _Stack:
    """Puts samples into one batch; none make one of length 0."""

    shape: tuple[int, int, int]

    def __call__(self, samples: list[tuple[Tensor, int] | Failed]) -> tuple[Tensor, Tensor] | Failed:
        read = []
        for sample in samples:
            if isinstance(sample, Failed):
                return sample
            read.append(sample)
        images = [image for image, _ in read]
        labels = torch.tensor([label for _, label in read], dtype=torch.int64)
        return torch.stack(images) if images else torch.empty((0, *self.shape), dtype=torch.uint8), labels
