"""Binds a user-defined collective by the names of its parameters."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch.distributed as dist
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.ranks.world.operation import OPS, Op

_NAMES: Mapping[str, str] = {
    "world": "world",
    "rank": "rank",
    "world_size": "size",
    "size": "size",
    "src": "root",
    "source": "root",
    "dst": "root",
    "to": "root",
    "root": "root",
    "op": "op",
}
_REDUCE_OPS: Mapping[Op, Any] = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


@dataclass(frozen=True, slots=True)
class Call:
    """A function with the meaning of its parameters."""

    fn: Callable[..., object]  # the function
    tensor: str  # the name of the parameter that takes the tensor
    meanings: Mapping[str, str]  # by parameter, one of ``world``, ``rank``, ``size``, ``root`` and ``op``
    names_ops: bool  # whether `op` is the name of an operation, not a ``ReduceOp``
    # the operations that `fn` declares, as in ``op: Literal["sum", "mean"]``; all if it declares none
    ops: Sequence[Op] = OPS

    @property
    def name(self) -> str:
        """The function's name in messages."""
        return str(getattr(self.fn, "__name__", None) or getattr(self.fn, "name", None) or self.fn)

    def takes(self, meaning: str) -> bool:
        """Return whether a parameter has this meaning."""
        return meaning in self.meanings.values()

    def __call__(self, tensor: Tensor, *, world: Any, root: int, op: Op) -> object:
        """Call the function on one rank, with its tensor and world; `root` is the rank that differs."""
        values = {"world": world, "rank": world.place.rank, "size": world.place.size, "root": root}
        values["op"] = op if self.names_ops else _REDUCE_OPS[op]
        arguments = {name: values[meaning] for name, meaning in self.meanings.items()}
        return self.fn(**{self.tensor: tensor}, **arguments)


def bind(fn: Callable[..., object]) -> Call:
    """Return `fn` with the meaning of its parameters.

    Raises:
        UsageError: `fn` has no parameter for the tensor, or an unknown one without a default.
    """
    meanings: dict[str, str] = {}
    rest: list[str] = []
    parameters = inspect.signature(fn).parameters
    for name, parameter in parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and name in _NAMES:
            meanings[name] = _NAMES[name]
        elif named and (not rest or parameter.default is parameter.empty):
            rest.append(name)
    if len(rest) != 1:
        raise UsageError(
            f"{getattr(fn, '__name__', fn)}{inspect.signature(fn)} takes {rest or 'no tensor'}. Give it one "
            f"parameter for the tensor, and others only of the names {', '.join(_NAMES)}."
        )
    declared = _declared_ops(fn) if "op" in meanings else ()
    has_name = bool(declared) or ("op" in meanings and isinstance(parameters["op"].default, str))
    return Call(fn, rest[0], meanings, "world" in meanings or has_name, declared or OPS)


def _declared_ops(fn: Callable[..., object]) -> Sequence[Op]:
    """Return the operations of ``op: Literal[...]``; none if it has another annotation.

    Raises:
        UsageError: an operation is unknown.
    """
    try:
        annotation = inspect.signature(fn, eval_str=True).parameters["op"].annotation
    except (NameError, TypeError, SyntaxError, AttributeError):  # an annotation that cannot be evaluated
        return ()
    declared = get_args(annotation) if get_origin(annotation) is Literal else ()
    if unknown := [op for op in declared if op not in OPS]:
        raise UsageError(
            f"{getattr(fn, '__name__', fn)} declares the operation {unknown[0]!r}; "
            f"declare some of {', '.join(OPS)}."
        )
    return declared
