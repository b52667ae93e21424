"""Finds how the calls differ in which all ranks of a group wait for each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from samestep.base.units import format_ranks, verb
from samestep.ranks.hang.detection import Hang
from samestep.ranks.hang.rank_status import MESSAGES, RankStatus, Wait

Kind: TypeAlias = Literal["calls", "data", "roots", "messages"]
_DOING = {"send": "sends to", "recv": "receives from", "exchange": "exchanges with"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the calls of ranks."""

    kind: Kind  # other collectives, other data in one collective, other roots, or messages that do not match
    words: str


def find_difference(hang: Hang, statuses: Mapping[int, RankStatus]) -> Difference | None:
    """Return the first difference between the calls of the ranks; None if it is unknown."""
    waits = {
        rank: status.wait
        for rank, status in sorted(statuses.items())
        if status.wait is not None and status.wait.group == hang.wait.group
    }
    return _in_messages(waits) or _in_recent(waits) or _in_roots(waits)


def _in_messages(waits: Mapping[int, Wait]) -> Difference | None:
    if len(waits) < 2 or any(wait.op not in MESSAGES for wait in waits.values()):
        return None
    each = [
        f"rank {rank} {_DOING[wait.op]} {'any rank' if wait.peer is None else f'rank {wait.peer}'}"
        for rank, wait in waits.items()
    ]
    return Difference("messages", f"the ranks wait for each other: {', '.join(each)}")


def _in_recent(waits: Mapping[int, Wait]) -> Difference | None:
    """Return the difference between the recorded collectives of one number."""
    recorded = {rank: {one[0]: one[1:] for one in wait.recent} for rank, wait in waits.items()}
    for number in sorted({number for calls in recorded.values() for number in calls}):
        ranks: dict[tuple[str, str], list[int]] = {}
        for rank, calls in recorded.items():
            if number in calls:
                ranks.setdefault(calls[number], []).append(rank)
        if len(ranks) > 1:
            return _different(number, ranks)
    return None


def _different(number: int, ranks: Mapping[tuple[str, str], list[int]]) -> Difference:
    names = {op for op, _ in ranks}
    if len(names) == 1:
        each = ", ".join(
            f"{format_ranks(same)} {verb(same, 'gives', 'give')} {data or 'none'}"
            for (_, data), same in ranks.items()
        )
        return Difference("data", f"the ranks call {names.pop()} #{number} with different data: {each}")
    each = ", ".join(
        f"{format_ranks(same)} {verb(same, 'calls', 'call')} {op} #{number}{data and f' of {data}'}"
        for (op, data), same in ranks.items()
    )
    return Difference("calls", f"the ranks call different collectives: {each}")


def _in_roots(waits: Mapping[int, Wait]) -> Difference | None:
    roots = {rank: wait.root for rank, wait in waits.items() if wait.root is not None}
    if len(set(roots.values())) < 2:
        return None
    wait = next(iter(waits.values()))
    each = ", ".join(f"rank {rank} gives {root}" for rank, root in roots.items())
    return Difference("roots", f"the ranks call {wait} with different roots: {each}")
