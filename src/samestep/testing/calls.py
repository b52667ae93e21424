"""How somebody's function is called: what its parameters are named says what it wants to know."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from samestep.base.errors import UsageError
from samestep.world.operation import Op

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
    """A function whose parameters are understood.

    Args:
        fn: the function.
        tensor: the name of the parameter that takes the tensor.
        wants: by parameter, which of ``world``, ``rank``, ``size``, ``root`` and ``op`` it takes.
        names_ops: whether it takes an operation's name, not torch's own spelling.
    """

    fn: Callable[..., object]
    tensor: str
    wants: Mapping[str, str]
    names_ops: bool

    @property
    def name(self) -> str:
        """The function's name, as messages have it."""
        return str(getattr(self.fn, "__name__", None) or getattr(self.fn, "name", None) or self.fn)

    def takes(self, what: str) -> bool:
        """Return whether one of the parameters is this."""
        return what in self.wants.values()

    def __call__(self, tensor: Tensor, *, world: Any, root: int, op: Op) -> object:
        """Call the function on one rank.

        Args:
            tensor: this rank's.
            world: this rank's.
            root: the rank that others send to, or receive from.
            op: what to reduce with.
        """
        known = {"world": world, "rank": world.place.rank, "size": world.place.size, "root": root}
        known["op"] = op if self.names_ops else _REDUCE_OPS[op]
        return self.fn(**{self.tensor: tensor}, **{name: known[what] for name, what in self.wants.items()})


def understood(fn: Callable[..., object]) -> Call:
    """Return how `fn` is to be called.

    Raises:
        UsageError: it has parameters without a default that nothing is known for.
    """
    wants: dict[str, str] = {}
    rest: list[str] = []
    parameters = inspect.signature(fn).parameters
    for name, parameter in parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and name in _NAMES:
            wants[name] = _NAMES[name]
        elif named and (not rest or parameter.default is parameter.empty):
            rest.append(name)
    if len(rest) != 1:
        raise UsageError(
            f"{getattr(fn, '__name__', fn)}{inspect.signature(fn)} takes {rest or 'no tensor'}: one "
            f"parameter is the tensor, and the others may be {', '.join(_NAMES)}."
        )
    names_ops = "world" in wants or ("op" in wants and isinstance(parameters["op"].default, str))
    return Call(fn, rest[0], wants, names_ops)
