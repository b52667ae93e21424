"""Parses Slurm's hostlist notation, and its list of tasks per node."""

import re
from collections.abc import Iterator
from itertools import product
from math import prod

from samestep.base.errors import DetectionError

MOST = 2**16
"""Maximum nodes of a job, as in Slurm itself; a few characters can stand for any number."""
_RANGES = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?(,[0-9]{1,18}(-[0-9]{1,18})?)*")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_SHOWN = 200  # maximum characters of a list that a message quotes


def hosts(text: str) -> list[str]:
    """Return the host names of a list in hostlist notation, in its order; none for an empty list.

    >>> hosts("node[0-1,3],gpu-[08-09]")
    ['node0', 'node1', 'node3', 'gpu-08', 'gpu-09']
    >>> hosts("rack[1-2]n[0-1]")
    ['rack1n0', 'rack1n1', 'rack2n0', 'rack2n1']

    Raises:
        DetectionError: the brackets or ranges are malformed, or there are more than `MOST` hosts.
    """
    parts = [_pieces(part, text) for part in _outer_parts(text) if part]
    if sum(prod(map(_length, pieces)) for pieces in parts) > MOST:
        raise DetectionError(f"the host list {_quoted(text)} stands for more than {MOST:,} hosts.")
    names = ["".join(words) for pieces in parts for words in product(*map(_names, pieces))]
    if text and not names:
        raise _unreadable(text)
    return names


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node, node by node.

    >>> tasks_per_node("2(x2),1")
    [2, 2, 1]

    Raises:
        DetectionError: the text is not in Slurm's notation, or there are more than `MOST` nodes.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise DetectionError(
                f"cannot read tasks per node from {_quoted(text)}: expected a list like '3,1' or '2(x2)'."
            )
        if len(counts) + int(match[2] or 1) > MOST:
            raise DetectionError(f"tasks per node {_quoted(text)} stand for more than {MOST:,} nodes.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _outer_parts(text: str) -> Iterator[str]:
    """Yield the parts between the commas outside brackets."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text):
        yield part.strip()


def _pieces(part: str, whole: str) -> list[str]:
    """Return ``rack[1-2]n`` as ``rack``, ``[1-2]`` and ``n``."""
    pieces = re.findall(r"\[[^\[\]]*\]|[^\[\]]+", part)
    if "".join(pieces) != part:
        raise _unreadable(whole)
    for piece in pieces:
        if piece[0] == "[" and (_RANGES.fullmatch(piece[1:-1]) is None or _length(piece) < 1):
            raise _unreadable(whole)
    return pieces


def _ranges(piece: str) -> Iterator[tuple[str, str]]:
    """Yield the first and the last number of each range in ``[0-1,3]``, as they are written."""
    for part in piece[1:-1].split(","):
        first, dash, last = part.partition("-")
        yield first, last if dash else first


def _length(piece: str) -> int:
    """Return how many names a piece stands for; 0 if a range ends before it begins."""
    if piece[0] != "[":
        return 1
    lengths = [int(last) - int(first) + 1 for first, last in _ranges(piece)]
    return sum(lengths) if min(lengths) > 0 else 0


def _names(piece: str) -> list[str]:
    """Return the names that a piece stands for; leading zeros are part of a name and are kept."""
    if piece[0] != "[":
        return [piece]
    return [
        str(number).zfill(len(first))
        for first, last in _ranges(piece)
        for number in range(int(first), int(last) + 1)
    ]


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _unreadable(whole: str) -> DetectionError:
    return DetectionError(
        f"cannot read the host list {_quoted(whole)}: expected something like 'node[0-1,3],gpu-[08-11]'."
    )
