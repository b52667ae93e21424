"""Slurm's two compressed notations: lists of hosts, and of tasks per node."""

import re
from collections.abc import Iterator

from samestep.base.errors import DetectionError

_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def hosts(text: str) -> list[str]:
    """Return the host names of a compressed list, in its order.

    >>> hosts("node[0-1,3],gpu-[08-09]")
    ['node0', 'node1', 'node3', 'gpu-08', 'gpu-09']
    >>> hosts("rack[1-2]n[0-1]")
    ['rack1n0', 'rack1n1', 'rack2n0', 'rack2n1']

    Raises:
        DetectionError: the brackets or ranges do not make sense.
    """
    return [host for part in _outer_parts(text) for host in _expand(part, text)]


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node, node by node.

    >>> tasks_per_node("2(x2),1")
    [2, 2, 1]

    Raises:
        DetectionError: the text is not in Slurm's notation.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise DetectionError(
                f"cannot read tasks per node from {text!r}: expected a list like '3,1' or '2(x2)'."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _outer_parts(text: str) -> Iterator[str]:
    """Yield what stands between the commas outside brackets."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text):
        yield part.strip()


def _expand(part: str, whole: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if "]" in part:
            raise _unreadable(whole)
        return [part] if part else []
    inside, closed, tail = rest.partition("]")
    if not closed or "]" in head or _RANGES.fullmatch(inside) is None:
        raise _unreadable(whole)
    tails = _expand(tail, whole) or [""]
    return [head + number + end for number in _numbers(inside, whole) for end in tails]


def _numbers(inside: str, whole: str) -> Iterator[str]:
    """Yield the numbers of ``0-1,3``; leading zeros are part of the name and stay."""
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        last = last if dash else first
        if int(last) < int(first):
            raise _unreadable(whole)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _unreadable(whole: str) -> DetectionError:
    return DetectionError(
        f"cannot read the host list {whole!r}: expected something like 'node[0-1,3],gpu-[08-11]'."
    )
