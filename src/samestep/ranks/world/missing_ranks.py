"""Finds the missing ranks of a deadlock, from the notes that the ranks have posted.

A rank detects only that the rank it waits for does not answer, and that one may wait as well::

    rank 3  waits for  rank 2  waits for  rank 1     which posts nothing

So a rank that waits for long posts the rank that it waits for at intervals, and one that gives up posts that
once. A rank that has neither posted recently nor given up is missing: dead, stopped, or busy with other work.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Note of one rank about its wait.

    Args:
        op: the operation: ``send``, ``recv``, ``exchange`` or the name of a collective.
        peer: the rank it waits for; None for all ranks.
        number: number of this wait on the rank.
        alone: whether no other message of this rank is under way.
        beat: grows each time that the rank posts this note.
        gave_up: whether the rank has stopped waiting.
    """

    op: str
    peer: int | None
    number: int
    alone: bool = False
    beat: int = 0
    gave_up: bool = False

    def to_json(self) -> str:
        """Return the note as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Note":
        """Return the note that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Missing ranks, and the chain of waits that leads to them.

    Args:
        missing: the missing ranks; none if each rank waits for another.
        way: the rank that searches, the rank it waits for, the rank that one waits for, and so on.
    """

    missing: tuple[int, ...]
    way: tuple[int, ...]


def present(before: Mapping[int, Note], after: Mapping[int, Note]) -> dict[int, Note]:
    """Return the notes of the ranks that are alive.

    Args:
        before: earlier notes, by rank.
        after: notes some beats later, by rank.
    """
    return {rank: note for rank, note in after.items() if note.gave_up or note != before.get(rank)}


def find_missing(rank: int, size: int, notes: Mapping[int, Note]) -> Found:
    """Return the missing ranks.

    Args:
        rank: the rank that searches; it has posted a note.
        size: number of ranks.
        notes: notes of live ranks, by rank.
    """
    way = [rank]
    while (note := notes.get(way[-1])) is not None:
        if note.peer is None:
            return Found(missing=tuple(one for one in range(size) if one not in notes), way=tuple(way))
        way.append(note.peer)
        if note.peer in way[:-1]:
            return Found(missing=(), way=tuple(way))
    return Found(missing=(way[-1],), way=tuple(way))


def find_circle(rank: int, notes: Mapping[int, Note]) -> list[tuple[int, Note]]:
    """Return the notes of ranks that wait for each other, from `rank` back to it; none if there is no circle.

    The message that an exchange waits for may still arrive, so that only ranks with no other message count.

    Args:
        rank: the rank that searches.
        notes: notes by rank.
    """
    circle: list[tuple[int, Note]] = []
    at: int | None = rank
    while len(circle) <= len(notes):
        note = None if at is None else notes.get(at)
        if at is None or note is None or not note.alone:
            return []
        circle.append((at, note))
        at = note.peer
        if at == rank:
            return circle
    return []


def in_words(found: Found, error: str) -> str:
    """Return the message about missing ranks.

    Args:
        found: the missing ranks.
        error: message of the back end.
    """
    rank, *others = found.way
    waits = ", ".join(
        f"rank {one} {'waited ' if one == rank else ''}for rank {other}"
        for one, other in zip(found.way, others, strict=False)
    )
    if not found.missing:
        return f"rank {rank} has waited in vain, though no rank is missing: {waits or error}"
    many = len(found.missing) > 1
    lost = (
        f"rank{'s' * many} {', '.join(map(str, found.missing))} {'are' if many else 'is'} lost to rank {rank}"
    )
    return f"{lost} ({waits}): {error}" if len(others) > 1 else f"{lost}: {error}"
