"""Finds the lost ranks of a failed wait, and ranks that wait for each other, from the statuses of all ranks.

A rank knows only that the rank it waits for does not answer, and that one may wait as well::

    rank 3  waits for  rank 2  waits for  rank 1     which waits for no rank

A rank that neither waits nor has given up is lost: dead, stopped, or busy with other work.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from samestep.base.units import format_ranks, verb
from samestep.ranks.hang.rank_status import RankStatus, Wait

_LINES = 4  # maximum number of lost ranks whose lines are stated
_DOING = {"send": "sends to", "recv": "receives from"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Lost ranks, and the chain of waits that leads to them."""

    missing: tuple[int, ...]  # the lost ranks; none if each rank waits for another
    # the rank that searches, the rank it waits for, the rank that one waits for, and so on
    way: tuple[int, ...]


def waiting_ranks(before: Mapping[int, RankStatus], after: Mapping[int, RankStatus]) -> dict[int, Wait]:
    """Return the waits of the ranks that wait, or have given up, by their statuses at two times."""
    return {
        rank: status.wait
        for rank, status in after.items()
        if status.wait is not None
        and (status.gave_up or rank not in before or status.beat != before[rank].beat)
    }


def find_lost(rank: int, size: int, waits: Mapping[int, Wait]) -> Loss:
    """Return the lost ranks.

    Args:
        rank: the rank that searches; its wait is known.
        size: number of ranks.
        waits: waits of live ranks, by rank.
    """
    way = [rank]
    while (wait := waits.get(way[-1])) is not None:
        if wait.peer is None:
            return Loss(missing=tuple(one for one in range(size) if one not in waits), way=tuple(way))
        way.append(wait.peer)
        if wait.peer in way[:-1]:
            return Loss(missing=(), way=tuple(way))
    return Loss(missing=(way[-1],), way=tuple(way))


def describe_circle(circle: list[int], waits: Mapping[int, Wait]) -> str:
    """Return the waits of ranks that wait for each other as text."""
    return ", ".join(f"rank {one} {_DOING[waits[one].op]} rank {waits[one].peer}" for one in circle)


def describe_loss(loss: Loss, statuses: Mapping[int, RankStatus], error: str) -> str:
    """Return the message about lost ranks; `error` is that of the back end."""
    rank, *others = loss.way
    waits = ", ".join(
        f"rank {one} {'waited ' if one == rank else ''}for rank {other}"
        for one, other in zip(loss.way, others, strict=False)
    )
    lines = {one: statuses[one].line for one in loss.missing[:_LINES] if one in statuses}
    known = [waits] * (len(others) > 1) + [
        f"rank {one} was last at {line}" for one, line in lines.items() if line
    ]
    if not loss.missing:
        return f"rank {rank} has waited in vain, though no rank is missing: {waits or error}"
    lost = f"{format_ranks(loss.missing)} {verb(loss.missing, 'is', 'are')} lost to rank {rank}"
    return f"{lost} ({'; '.join(known)}): {error}" if known else f"{lost}: {error}"
