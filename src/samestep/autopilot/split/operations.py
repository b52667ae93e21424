"""Records the operations of a call, to find a branch that no check has taken.

A forward may branch on a number of which not each value is checked: a random one, a schedule, a counter::

    if step > 0.6 * total: h = h - h.mean(0)

The samples do not show such a branch, but what is computed then does. A mean over the rows of a weight is
another operation than one over samples, so tensors that are computed from samples are followed.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from samestep.base.errors import OutOfStep
from samestep.hooks.tensor_tree import leaves

Operation: TypeAlias = tuple[Any, Any, Any]
"""An operation of torch, the dimensions that it is given, as that of samples may be among them, and of each
operand that is computed from samples the number of its dimensions."""
_CAST = torch.ops.aten._to_copy.default  # noqa: SLF001 - no public spelling
_OF_NO_SAMPLE = -1
"""Stands for the dimensions of an operand that is computed from no sample, such as a weight."""


class OtherBranchError(OutOfStep):
    """A call has taken a branch that no check has taken."""


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records all operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[Operation] = set()
        self._of_samples: dict[int, StorageWeakRef] = {}
        """The memory with values of samples, by an address that no other has while it is referred to."""

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Follow tensors that hold samples, and all tensors that are computed from them."""
        for tensor in tensors:
            if _has_memory(tensor):
                reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
                self._of_samples[reference.cdata] = reference

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation, and record it."""
        named = kwargs or {}
        operands = tuple(map(self._operand, (*args, *named.values())))
        if func is not _CAST or operands[0] != _OF_NO_SAMPLE:  # autocast keeps the weights that it has cast
            self.operations.add((func, _dims_of(func, args, named), operands))
        result = self._run(func, args, named)
        if any(map(_is_of_samples, operands)):
            written = (args, named) if result is None else result
            self.follow(tensor for _, tensor in leaves(written))
        return result

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _operand(self, value: Any) -> Any:
        """Return what is recorded of an argument; of a list of any length, each kind of part once."""
        if isinstance(value, Tensor):
            is_followed = _has_memory(value) and value.untyped_storage()._cdata in self._of_samples  # noqa: SLF001
            return value.dim() if is_followed else _OF_NO_SAMPLE
        if isinstance(value, (list, tuple)):
            return tuple(dict.fromkeys(map(self._operand, value)))
        return None


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and torch._C._has_storage(tensor)  # noqa: SLF001


def _is_of_samples(operand: Any) -> bool:
    if isinstance(operand, tuple):
        return any(map(_is_of_samples, operand))
    return operand is not None and operand != _OF_NO_SAMPLE


def check_operations(name: str, operations: Set[Operation], known: Set[Operation]) -> None:
    """Raise `OtherBranchError` if a call has had operations that its check has not had."""
    if unknown := operations - known:
        names = ", ".join(sorted({str(func.overloadpacket) for func, *_ in unknown}))
        raise OtherBranchError(f"{name} takes a branch that no check has taken ({names}).")


def _dims_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the dimensions that an operation is given; None if it has no such argument."""
    dims = [
        args[number] if number < len(args) else kwargs.get(name) for number, name in _places_of_dims(func)
    ]
    return tuple(tuple(dim) if isinstance(dim, list) else dim for dim in dims) or None


@functools.cache
def _places_of_dims(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the numbers and the names of the arguments that are dimensions; a transpose has two."""
    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 - no public spelling
    return tuple((number, name) for number, name in enumerate(names) if name.startswith("dim"))
