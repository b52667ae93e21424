"""Checks what must be equal on the ranks of a data-parallel script, and what must differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from samestep.base.errors import OutOfStep
from samestep.base.units import format_ranks
from samestep.parallel.gradients.weight_checksum import drift_message


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPoint:
    """Values of one rank at the start of a backward, or after an optimizer step."""

    kind: str  # ``backward`` or ``optimizer step``
    number: int  # number of the backward or step, from 1
    line: str  # line of the script
    not_finite: bool = False  # whether the loss, or a gradient, is not finite
    weights: tuple[int, ...] = ()  # checksums of the parameters after a step
    shapes: tuple[tuple[int, ...], ...] = ()  # shapes of the parameters
    # hashes of the samples of training calls since the last backward
    samples: tuple[int, ...] = field(default=())
    stream: int = 0  # digest of the random state before the first of these calls that drew; 0 if none did
    model: str = ""  # the model that was called, and the line of the call

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.kind} {self.number}"


class Suspicion(NamedTuple):
    """A probable mistake in a script."""

    code: Literal["same-samples", "same-random-stream", "different-lines"]
    text: str


def check(points: Sequence[SyncPoint]) -> None:
    """Raise OutOfStep, on all ranks, for differences between their values that invalidate the run."""
    _check_place(points)
    _check_finite(points)
    _check_weights(points)


def suspicions(points: Sequence[SyncPoint]) -> list[Suspicion]:
    """Return the probable mistakes that the values of all ranks show."""
    found = []
    first = points[0]
    equal = _equal_ranks(points, lambda one: tuple(sorted(one.samples)))
    if equal:
        own = points[equal[0]]
        text = (
            f"{format_ranks(equal)} train on the same {len(own.samples)} samples in {first.name} "
            f"({own.model}). Give each rank its shard (DistributedSampler, samestep.shard)."
        )
        found.append(Suspicion("same-samples", text))
    same = [rank for rank in _equal_ranks(points, lambda one: one.stream) if rank not in equal]
    if len(same) > 1:
        text = (
            f"{format_ranks(same)} draw the same random numbers for different samples in {first.name} "
            f"({points[same[0]].model}), so dropout masks repeat. Seed with seed + rank after creating the "
            "model."
        )
        found.append(Suspicion("same-random-stream", text))
    if len({one.line for one in points}) > 1:
        where = ", ".join(f"rank {rank} at {one.line}" for rank, one in enumerate(points))
        text = f"the ranks run {first.name} in different lines of the script: {where}."
        found.append(Suspicion("different-lines", text))
    return found


def _check_place(points: Sequence[SyncPoint]) -> None:
    places = [(one.kind, one.number) for one in points]
    if len(set(places)) > 1:
        other = next(rank for rank, place in enumerate(places) if place != places[0])
        raise OutOfStep(
            f"the ranks are out of step: rank 0 is at {_position(points[0])}, rank {other} at "
            f"{_position(points[other])}. All ranks must run the same steps in the same order."
        )


def _position(point: SyncPoint) -> str:
    return f"{point.name} ({point.line})"


def _check_finite(points: Sequence[SyncPoint]) -> None:
    bad = [rank for rank, one in enumerate(points) if one.not_finite]
    if bad and len(bad) < len(points):
        what = "the loss is" if points[0].kind == "backward" else "a gradient is"
        raise OutOfStep(
            f"{what} NaN or infinite on {format_ranks(bad)} of {len(points)} only, in {points[0].name}. "
            "Check the samples of that rank: the average makes the step of all ranks invalid."
        )


def _check_weights(points: Sequence[SyncPoint]) -> None:
    if len({one.shapes for one in points}) > 1:  # sharded parameters
        return
    for index, shape in enumerate(points[0].shapes):
        found = [one.weights[index] for one in points]
        if len(set(found)) > 1:
            raise OutOfStep(
                f"{drift_message(f'parameter {index} {list(shape)}', found)} Detected after {points[0].name}."
            )


def _equal_ranks(points: Sequence[SyncPoint], key: Callable[[SyncPoint], object]) -> list[int]:
    """Return the first ranks with an equal value that is not empty; empty if fewer than two."""
    values = [key(one) for one in points]
    for value in values:
        ranks = [rank for rank, other in enumerate(values) if other == value]
        if value and len(ranks) > 1:
            return ranks
    return []
