"""Fills templates in arguments that depend on the number of workers.

=============  =====================================================
in an argument becomes
=============  =====================================================
``{n}``        the workers in total
``{local}``    the workers on each node
``{nodes}``    the nodes
``{256/n}``    256 divided by the workers; an error if that is not whole
``{32*n}``     32 times the workers
``{{``         a brace
=============  =====================================================

The arithmetic is for batch sizes. In the other scaling mode it is evaluated for the smallest number of
workers (*held*): ``{256/n}``, a batch of each worker that shrinks, is then constant.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from samestep.base.errors import UsageError

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = "n|local|nodes"
_INNER = re.compile(rf"\s*(?:(?:(\d+)\s*([*/])\s*)?({_NAME})|({_NAME})\s*\*\s*(\d+))\s*")


def filled(
    arguments: Iterable[str], *, workers: int, nodes: int = 1, held: tuple[int, int] | None = None
) -> list[str]:
    """Return `arguments` for a number of workers on nodes.

    >>> filled(["--devices", "{local}", "--batch-size={256/n}"], workers=4, nodes=2)
    ['--devices', '2', '--batch-size=64']

    The arithmetic is evaluated for other workers and nodes if these are `held`.

    Raises:
        UsageError: a template is invalid, or a division has a remainder.
    """
    values = _values(workers, nodes)
    base = _values(*held) if held else values
    return [_filled(argument, values, base) for argument in arguments]


def operators(arguments: Sequence[str]) -> set[str]:
    """Return the operators of the arithmetic in `arguments`.

    >>> operators(["--devices={n}", "--batch-size={256/n}"])
    {'/'}

    Raises:
        UsageError: a template is invalid.
    """
    found = set()
    for argument in arguments:
        for piece in _PIECE.finditer(argument):
            if piece[0] not in ("{{", "}}"):
                found.add(_parsed(piece, argument)[1])
    return found - {""}


def _values(workers: int, nodes: int) -> dict[str, int]:
    return {"n": workers, "local": workers // nodes, "nodes": nodes}


def _filled(argument: str, values: Mapping[str, int], base: Mapping[str, int]) -> str:
    def fill(piece: re.Match[str]) -> str:
        if piece[0] in ("{{", "}}"):
            return piece[0][0]
        number, operator, name = _parsed(piece, argument)
        if not operator:
            return str(values[name])
        if operator == "*":
            return str(number * base[name])
        if number % base[name]:
            raise UsageError(
                f"{argument}: {number} is not divisible by {name} = {base[name]}. Give a number that is, or "
                "other numbers of workers."
            )
        return str(number // base[name])

    return _PIECE.sub(fill, argument)


def _parsed(piece: re.Match[str], argument: str) -> tuple[int, str, str]:
    """Return number, operator and name of one template; the operator of a plain name is empty."""
    found = _INNER.fullmatch(piece[1] or "")
    if found is None:
        raise UsageError(
            f"{piece[0]} in {argument!r} is not a template; use {{n}}, {{local}}, {{nodes}}, {{256/n}} or "
            "{32*n}. Write a literal brace twice: {{ and }}."
        )
    number, operator, name, first, factor = found.groups()
    return int(number or factor or 1), operator or ("*" if factor else ""), name or first
