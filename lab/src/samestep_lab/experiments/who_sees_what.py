"""Lists which samples each rank draws in each epoch, by sampler."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DistributedSampler

from samestep.base.place import Place
from samestep.parallel.sharding import Plan
from samestep.training.data.sharded_loader import ShareBatchSampler
from samestep_lab.experiments.experiment import Outcome, Setup, Table

SAMPLES, EPOCHS, BATCH = 8, 2, 4
Drawn = list[list[int]]
"""The samples of each epoch."""


def _torch(*, shuffle: bool, new_order: bool) -> Callable[[int, int], Drawn]:
    def drawn(rank: int, size: int) -> Drawn:
        samples: Any = range(SAMPLES)
        sampler: Any = DistributedSampler(samples, size, rank, shuffle=shuffle)
        epochs = []
        for epoch in range(EPOCHS):
            if new_order:
                sampler.set_epoch(epoch)
            epochs.append(list(sampler))
        return epochs

    return drawn


def _unpadded(rank: int, size: int) -> Drawn:
    plan = Plan(count=SAMPLES, batch_size=max(BATCH, size), place=Place(rank=rank, size=size))
    sampler = ShareBatchSampler(plan, seed=0)
    return [[sample for part in sampler for sample in part] for _ in range(EPOCHS)]


SAMPLERS: dict[str, Callable[[int, int], Drawn]] = {
    "DistributedSampler(shuffle=False)": _torch(shuffle=False, new_order=False),
    "DistributedSampler": _torch(shuffle=True, new_order=False),
    "DistributedSampler and set_epoch": _torch(shuffle=True, new_order=True),
    "samestep.UnpaddedSampler": _unpadded,
}
"""Each takes rank and size."""


def run(setup: Setup) -> Outcome:
    """Run the experiment."""
    size = setup.workers
    drawn = {name: [draw(rank, size) for rank in range(size)] for name, draw in SAMPLERS.items()}
    rows = [
        (name if not epoch else "", str(epoch), *(" ".join(map(str, rank[epoch])) for rank in ranks))
        for name, ranks in drawn.items()
        for epoch in range(EPOCHS)
    ]
    repeated = {name: sum(map(len, (rank[0] for rank in ranks))) - SAMPLES for name, ranks in drawn.items()}
    moved = {name: _moved(ranks) for name, ranks in drawn.items()}
    extra = ", ".join(f"{count} by {name}" for name, count in repeated.items() if count)
    moving = [name for name, count in moved.items() if count]
    return Outcome(
        tables=[Table(head=("sampler", "epoch", *(f"rank {rank}" for rank in range(size))), rows=rows)],
        measured=(
            f"Samples change the rank from epoch 0 to 1 with: {', '.join(moving) or 'no sampler'}. "
            f"Samples drawn a second time in an epoch: {extra or 'none'}."
        ),
        values={"samples": drawn, "repeated": repeated, "moved": moved},
    )


def _moved(ranks: Sequence[Drawn]) -> int:
    """Return how many samples are on a rank in epoch 1 that was without them in epoch 0."""
    return sum(len(set(rank[1]) - set(rank[0])) for rank in ranks)
