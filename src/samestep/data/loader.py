"""Global batches of a data set in memory, and this rank's slice of each."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from samestep.base.place import Place
from samestep.data.augment import Augment
from samestep.data.draws import sample_words
from samestep.data.image_set import ImageSet
from samestep.data.normalise import Normalise
from samestep.sharding.batches import micro_batches
from samestep.sharding.plan import Plan
from samestep.sharding.position import Position


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's part of one global batch; may hold no sample."""

    images: Tensor
    """(local, channels, height, width), normalised."""
    labels: Tensor
    """(local,), int64."""
    weight: float
    """What this rank's mean weighs in an average over ranks: local * N / samples of the step."""
    global_count: int
    """Samples of the (micro-)batch over all ranks."""
    ids: Tensor
    """(local,), int64: which samples of the set these are."""
    after: Position
    """Where the run stands once the step is done."""
    last_of_step: bool = True
    """Whether the step ends with it; False for all but the last of several micro-batches."""

    @property
    def local_count(self) -> int:
        """Samples of this rank."""
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """Draws global batches on the images' own device, as whole batches: nothing is done per sample.

    All ranks compute the same order and take their share of each batch, so that the samples of a step do
    not depend on the number of ranks. For evaluation: ``shuffle=False``; each sample counts exactly once.

    Raises:
        UsageError: a full batch is too small to give every rank a sample.
    """

    images: ImageSet
    """Already on the device to compute on."""
    _: KW_ONLY
    batch_size: int
    """Samples per step, over all ranks."""
    place: Place = field(default_factory=Place)
    shuffle: bool = True
    augment: Augment | None = None
    dtype: torch.dtype = torch.float32
    """What the images become."""
    accumulate: int = 1
    """Micro-batches per step."""
    drop_last: bool = False
    plan: Plan = field(init=False, repr=False)
    _normalise: Normalise = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plan = Plan(
            count=len(self.images),
            batch_size=self.batch_size,
            place=self.place,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "_normalise", Normalise(self.images, self.dtype, self.images.images.device))

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return len(self.plan)

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` (by default the very beginning) to the end of its epoch.

        A step's micro-batches come one after the other, as many on every rank; some may hold no sample of it.

        Raises:
            UsageError: `position` lies beyond the end of this data set.
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
        return self._normalise(images)
