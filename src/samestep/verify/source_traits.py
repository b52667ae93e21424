"""Reads from a script's source what is worth a further run: generators of its own, and the order of sets."""

import ast
from collections.abc import Iterator
from contextlib import suppress

from samestep.base.errors import UsageError
from samestep.launch.job import Program
from samestep.launch.source.classify import user_modules
from samestep.run.decision import source_file

_HASHED = ("set", "frozenset", "hash")
"""Functions of Python whose result can depend on the hash of a text, which differs between processes."""


def makes_generators(program: Program) -> bool:
    """Return whether a script, or a module of its user, names the class of torch's or NumPy's generators."""
    names = ("Generator", "default_rng", "RandomState")
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.Name) and node.id in names)
        for node in _nodes(program)
    )


def uses_hashes(program: Program) -> bool:
    """Return whether a script, or a module of its user, makes sets or calls `hash`."""
    return any(
        isinstance(node, ast.Set | ast.SetComp)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _HASHED)
        for node in _nodes(program)
    )


def _nodes(program: Program) -> Iterator[ast.AST]:
    file, roots = source_file(program)
    if program.kind == "executable" or file is None:
        return
    with suppress(UsageError, RecursionError, MemoryError):
        for _, tree in user_modules(file, roots):
            yield from ast.walk(tree)
