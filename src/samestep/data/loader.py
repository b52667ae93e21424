"""Global batches of a data set in memory, and this rank's slice of each."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from samestep.base.place import Place
from samestep.data.augment import Augment
from samestep.data.draws import sample_words
from samestep.data.image_set import ImageSet
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
    """What this rank's mean weighs in an average over ranks: local * N / global."""
    global_count: int
    """Samples of the batch over all ranks."""
    ids: Tensor
    """(local,), int64: which samples of the set these are."""
    after: Position
    """Where the run stands once the batch is used."""


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
    drop_last: bool = False
    plan: Plan = field(init=False, repr=False)
    _scale: Tensor = field(init=False, repr=False)
    _shift: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plan = Plan(
            count=len(self.images),
            batch_size=self.batch_size,
            place=self.place,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )
        # (x / white - mean) / std = x * scale - shift, in two passes over the batch
        mean = torch.tensor(self.images.mean, dtype=torch.float64).view(1, -1, 1, 1)
        std = torch.tensor(self.images.std, dtype=torch.float64).view(1, -1, 1, 1)
        device = self.images.images.device
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "_scale", (1 / (self.images.white * std)).to(device, self.dtype))
        object.__setattr__(self, "_shift", (mean / std).to(device, self.dtype))

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return len(self.plan)

    def epoch(self, position: Position | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` (by default the very beginning) to the end of its epoch.

        Raises:
            UsageError: `position` lies beyond the end of this data set.
        """
        position = Position() if position is None else position
        steps = self.plan.steps(position)
        order = torch.from_numpy(self.plan.order(position)).to(self.images.images.device)
        words = None if self.augment is None else sample_words(order, position)
        for step in steps:
            part = self.plan.share(step)
            here = slice(part.start, part.stop)
            ids = order[here]
            yield Batch(
                images=self._images(ids, None if words is None else words[here]),
                labels=self.images.labels.index_select(0, ids),
                weight=self.plan.weight(step),
                global_count=step.count,
                ids=ids,
                after=step.after,
            )

    def _images(self, ids: Tensor, words: Tensor | None) -> Tensor:
        images = self.images.images.index_select(0, ids)
        if self.augment is not None and words is not None:
            images = self.augment(images, words)
        return images.to(self.dtype).mul_(self._scale).sub_(self._shift)
