"""Whether a module says itself which rank a process is: the mark of a script that starts its own workers."""

import ast
from collections.abc import Iterator

from samestep.source.names import Names, assigned

BY_HAND = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")

_RANK_POSITION = 4
"""Of ``rank`` among the arguments of `torch.distributed.init_process_group`."""

_SET_BY_LAUNCHERS = ("RANK", "MASTER_PORT")


def sets_rank(nodes: list[ast.AST], names: Names) -> bool:
    """Return whether a rank, or the port where the ranks meet, is given as anything but the launcher's.

    A value that comes from the environment is what a launcher said, by way of the script.

    Args:
        nodes: what may run of the module.
        names: what its names stand for.
    """
    told = {name for node in nodes for name in _from_environment(node, names)}
    return any(
        not _reads_environment(value, names, told) for node in nodes for value in _said_ranks(node, names)
    )


def _said_ranks(node: ast.AST, names: Names) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and any(name in BY_HAND for name in names.full(node.func)):
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "rank")
        yield from node.args[_RANK_POSITION : _RANK_POSITION + 1]
    for target, value in assigned(node):
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value in _SET_BY_LAUNCHERS
            and "os.environ" in names.full(target.value)
        ):
            yield value


def _from_environment(node: ast.AST, names: Names) -> Iterator[str]:
    for target, value in assigned(node):
        if isinstance(target, ast.Name) and _reads_environment(value, names, set()):
            yield target.id


def _reads_environment(value: ast.expr, names: Names, told: set[str]) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id in told:
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and any(
            name in ("os.environ", "os.getenv") for name in names.full(node)
        ):
            return True
    return False
