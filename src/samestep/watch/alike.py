"""What the ranks of a data-parallel script must have in common, and what they must not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from samestep.base.errors import OutOfStep
from samestep.replicas.fingerprint import drift_message
from samestep.watch.hang import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one rank tells at the start of a backward, or after a step of an optimizer.

    Args:
        kind: which of the two.
        number: how many of the kind there have been, this one included.
        line: of the script.
        broken: whether the loss, or a gradient, is not finite.
        weights: fingerprints of the parameters after a step.
        shapes: of the parameters.
        samples: hashes of the rows that the models were trained on since the last backward.
        stream: a digest of the random state before the first of these calls that has drawn; 0 for none.
        model: what was called, and where.
    """

    kind: str
    number: int
    line: str
    broken: bool = False
    weights: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    samples: tuple[int, ...] = field(default=())
    stream: int = 0
    model: str = ""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.kind} {self.number}"


def check(moments: Sequence[Moment]) -> None:
    """Raise OutOfStep, on all ranks alike, for what makes the run meaningless.

    Args:
        moments: of all ranks, in rank order.
    """
    _check_place(moments)
    _check_finite(moments)
    _check_weights(moments)


def suspicions(moments: Sequence[Moment]) -> list[str]:
    """Return what is probably not meant, each as a line; the first word tells them apart.

    Args:
        moments: of all ranks, in rank order.
    """
    found = []
    first = moments[0]
    alike = _equal_ranks(moments, lambda one: tuple(sorted(one.samples)))
    if alike:
        own = moments[alike[0]]
        found.append(
            f"samples: {listed(alike)} train on the same {len(own.samples)} samples in {first.name} "
            f"({own.model}): the work of one is done several times. Give each its share (DistributedSampler, "
            "samestep.shard)."
        )
    same = [rank for rank in _equal_ranks(moments, lambda one: one.stream) if rank not in alike]
    if len(same) > 1:
        found.append(
            f"streams: {listed(same)} draw the same random numbers for different samples in {first.name} "
            f"({moments[same[0]].model}): dropout masks repeat. Seed with seed + rank once the model is made."
        )
    lines = {one.line for one in moments}
    if len(lines) > 1:
        where = ", ".join(f"rank {rank} at {one.line}" for rank, one in enumerate(moments))
        found.append(f"lines: the ranks make {first.name} in different lines of the script: {where}.")
    return found


def _check_place(moments: Sequence[Moment]) -> None:
    places = [(one.kind, one.number) for one in moments]
    if len(set(places)) > 1:
        other = next(rank for rank, place in enumerate(places) if place != places[0])
        raise OutOfStep(
            f"the ranks have gone apart: rank 0 is at {_at(moments[0])}, rank {other} at "
            f"{_at(moments[other])}. All ranks must take the same steps in the same order."
        )


def _at(moment: Moment) -> str:
    return f"{moment.name} ({moment.line})"


def _check_finite(moments: Sequence[Moment]) -> None:
    broken = [rank for rank, one in enumerate(moments) if one.broken]
    if broken and len(broken) < len(moments):
        what = "the loss is" if moments[0].kind == "backward" else "a gradient is"
        raise OutOfStep(
            f"{what} NaN or infinite on {listed(broken)} of {len(moments)} alone, in {moments[0].name}. "
            "Look at the samples of that rank: averaged, they spoil the step of all."
        )


def _check_weights(moments: Sequence[Moment]) -> None:
    if len({one.shapes for one in moments}) > 1:  # ranks that share out their parameters
        return
    for index, shape in enumerate(moments[0].shapes):
        found = [one.weights[index] for one in moments]
        if len(set(found)) > 1:
            raise OutOfStep(
                f"{drift_message(f'parameter {index} {list(shape)}', found)} Seen after {moments[0].name}."
            )


def _equal_ranks(moments: Sequence[Moment], key: Callable[[Moment], object]) -> list[int]:
    """Return the first ranks with the same value that is not empty; fewer than two are none."""
    values = [key(one) for one in moments]
    for value in values:
        ranks = [rank for rank, other in enumerate(values) if other == value]
        if value and len(ranks) > 1:
            return ranks
    return []
