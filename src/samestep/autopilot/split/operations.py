"""Records the operations of a call, to find a branch that no check has taken.

A forward may branch on a number of which not each value is checked: a random one, a schedule, a counter::

    if step > 0.6 * total: h = h - h.mean(0)

The samples do not show such a branch, but what is computed then does.
"""

import functools
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeAlias

from torch.utils._python_dispatch import TorchDispatchMode

from samestep.base.errors import OutOfStep

Operation: TypeAlias = tuple[Any, Any]
"""An operation of torch, and the dimensions that it is given: that of samples may be among them."""


class OtherBranchError(OutOfStep):
    """A call has taken a branch that no check has taken."""


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records all operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[Operation] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        self.record(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Record one operation."""
        self.operations.add((func, _dims_of(func, args, kwargs)))


def check_operations(name: str, operations: Set[Operation], known: Set[Operation]) -> None:
    """Raise `OtherBranchError` if a call has had operations that its check has not had."""
    if unknown := operations - known:
        names = ", ".join(sorted({str(func.overloadpacket) for func, _ in unknown}))
        raise OtherBranchError(f"{name} takes a branch that no check has taken ({names}).")


def _dims_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the dimensions that an operation is given; None if it has no such argument."""
    place = _place_of_dims(func)
    if place is None:
        return None
    number, name = place
    dims = args[number] if number < len(args) else kwargs.get(name)
    return tuple(dims) if isinstance(dims, list) else dims


@functools.cache
def _place_of_dims(func: Any) -> tuple[int, str] | None:
    """Return the number and the name of the argument that is a dimension, or several; None if none is."""
    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 - no public spelling
    return next(((number, name) for number, name in enumerate(names) if name in ("dim", "dims")), None)
