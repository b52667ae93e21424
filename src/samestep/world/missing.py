"""Who is missing, worked out from what the ranks have written down.

A rank sees the one that it waits for, and that one may wait as well::

    rank 3  waits for  rank 2  waits for  rank 1     who says nothing

So a rank that waits for long writes down for whom, again and again, and one that gives up does so for good.
Who has neither said something of late nor given up is missing: dead, stopped, or busy with something else.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a rank has written down.

    Args:
        op: what it waits in: ``send``, ``recv``, ``exchange`` or the name of a collective.
        peer: whom it waits for; None where it is all ranks.
        number: of its waits.
        alone: whether nothing else of this rank is under way.
        beat: grows each time that the rank writes this.
        gave_up: whether it waits no longer.
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
    """Who is missing.

    Args:
        missing: the ranks; none where each of them waits for another.
        way: the rank that asks, whom it waits for, whom that one waits for, and so on.
    """

    missing: tuple[int, ...]
    way: tuple[int, ...]


def present(before: Mapping[int, Note], after: Mapping[int, Note]) -> dict[int, Note]:
    """Return the notes of ranks that are there.

    Args:
        before: what was written down, by rank.
        after: what is, some beats later.
    """
    return {rank: note for rank, note in after.items() if note.gave_up or note != before.get(rank)}


def find_missing(rank: int, size: int, notes: Mapping[int, Note]) -> Found:
    """Return who is missing.

    Args:
        rank: who asks; it has written a note.
        size: number of ranks.
        notes: of those that are there, by rank.
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
    """Return the notes of ranks that wait for each other, from `rank` back to it; nothing where none do.

    What an exchange waits for may be on its way all the same, so that only those count who do nothing else.

    Args:
        rank: who asks.
        notes: by rank.
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
    """Return who is missing in words.

    Args:
        found: who it is.
        error: what the back end says.
    """
    rank, *others = found.way
    waits = ", ".join(
        f"rank {one} {'waited ' if one == rank else ''}for rank {other}"
        for one, other in zip(found.way, others, strict=False)
    )
    if not found.missing:
        return f"rank {rank} has waited in vain, though no rank is missing: {waits or error}"
    many = len(found.missing) > 1
    who = (
        f"rank{'s' * many} {', '.join(map(str, found.missing))} {'are' if many else 'is'} lost to rank {rank}"
    )
    return f"{who} ({waits}): {error}" if len(others) > 1 else f"{who}: {error}"
