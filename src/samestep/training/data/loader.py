"""Draws this rank's part of global batches from a data set in memory."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from samestep.base.place import Place
from samestep.parallel.sharding.global_batches import micro_batches
from samestep.parallel.sharding.position import Position
from samestep.parallel.sharding.sample_plan import Plan
from samestep.training.data.augmentation import Augment
from samestep.training.data.image_set import ImageSet
from samestep.training.data.normalise import Normalize
from samestep.training.data.sample_random import sample_words


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's part of one global batch; can be empty."""

    images: Tensor
    """(local, channels, height, width), normalized."""
    labels: Tensor
    """(local,), int64."""
    weight: float
    """Weight of this rank's mean in an average over ranks: local * N / samples of the step."""
    global_count: int
    """Samples of the (micro-)batch over all ranks."""
    ids: Tensor
    """(local,), int64: indices of the samples in the data set."""
    after: Position
    """The position in the data after the step."""
    last_of_step: bool = True
    """Whether it is the last micro-batch of its step."""

    @property
    def local_count(self) -> int:
        """Samples of this rank."""
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """A loader that draws whole batches on the device of the images.

    All ranks compute the same order and take their part of each batch, so that the samples of a step do not
    depend on the number of ranks. Use ``shuffle=False`` for evaluation; each sample then occurs exactly once.

    Raises:
        UsageError: a full batch has fewer samples than ranks.
    """

    images: ImageSet
    """On the device of the training."""
    _: KW_ONLY
    batch_size: int
    """Samples per step, over all ranks."""
    place: Place = field(default_factory=Place)
    shuffle: bool = True
    augment: Augment | None = None
    dtype: torch.dtype = torch.float32
    """Dtype of the batches' images."""
    accumulate: int = 1
    """Micro-batches per step."""
    drop_last: bool = False
    plan: Plan = field(init=False, repr=False)
    _normalize: Normalize = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plan = Plan(
            count=len(self.images),
            batch_size=self.batch_size,
            place=self.place,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "_normalize", Normalize(self.images, self.dtype, self.images.images.device))

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""
        return len(self.plan)

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` (by default the first epoch's start) to the end of its epoch.

        The micro-batches of a step follow each other; their number is the same on every rank, and some can
        be empty.

        Raises:
            UsageError: `position` is beyond the end of this data set.
        """
        position = Position() if position is None else position
        steps = self.plan.steps(position)
        order = torch.from_numpy(self.plan.order(position)).to(self.images.images.device)
        words = None if self.augment is None else sample_words(order, position)
        for step, micro in micro_batches(steps, self.accumulate):
            part = self.plan.share(micro)
            here = slice(part.start, part.stop)
            ids = order[here]
            yield Batch(
                images=self._images(ids, None if words is None else words[here]),
                labels=self.images.labels.index_select(0, ids),
                weight=self.plan.weight(micro, of=step.count),
                global_count=micro.count,
                ids=ids,
                after=step.after,
                last_of_step=micro.stop == step.stop,
            )

    def _images(self, ids: Tensor, words: Tensor | None) -> Tensor:
        images = self.images.images.index_select(0, ids)
        if self.augment is not None and words is not None:
            images = self.augment(images, words)
        return self._normalize(images)
