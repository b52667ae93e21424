"""Detects modules that set the rank of a process themselves, as scripts that start their own workers do."""

import ast
from collections.abc import Iterator

from samestep.launch.source.names import Names, assigned

INIT_PROCESS_GROUP = (
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
)

_RANK_POSITION = 4
"""Index of ``rank`` in the arguments of `torch.distributed.init_process_group`."""

_SET_BY_LAUNCHERS = ("RANK", "MASTER_PORT")


def sets_rank(nodes: list[ast.AST], names: Names) -> bool:
    """Return whether a rank, or the rendezvous port, is set to a value other than the launcher's.

    A value from the environment is the launcher's.

    Args:
        nodes: the executable nodes of the module.
        names: its names.
    """
    read = {name for node in nodes for name in _from_environment(node, names)}
    return any(
        not _reads_environment(value, names, read) for node in nodes for value in _set_ranks(node, names)
    )


def _set_ranks(node: ast.AST, names: Names) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and any(name in INIT_PROCESS_GROUP for name in names.full(node.func)):
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


def _reads_environment(value: ast.expr, names: Names, read: set[str]) -> bool:
    """Return whether a value is read from the environment, directly or through a name in `read`."""
    return any(
        (isinstance(node, ast.Name) and node.id in read)
        or any(name in ("os.environ", "os.getenv") for name in names.full(node))
        for node in ast.walk(value)
        if isinstance(node, (ast.Name, ast.Attribute))
    )
