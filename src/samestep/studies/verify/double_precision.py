"""Runs a script that computes in single precision in double precision."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from samestep.hooks import verify_declarations
from samestep.hooks.registry import attached, wrapping

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_UNCHANGED = ("__get__", "copy_", "__setitem__", "__set__", "backward")
"""Functions that read attributes, or that write into a tensor and convert by themselves."""


@contextmanager
def in_double_precision() -> Iterator[None]:
    """Create the script's tensors in double precision, and convert those that come from elsewhere."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with attached(verify_declarations.FROM_NUMPY, wrapping(_from_numpy)), _Widening():
            yield
    finally:
        torch.set_default_dtype(usual)


class _Widening(TorchFunctionMode):
    """A mode in which names of single precision mean double precision."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _UNCHANGED:
            return func(*args, **kwargs)
        dtypes = {one.dtype for one in _tensors((args, tuple(kwargs.values())))}
        change = _widened if torch.float64 in dtypes else _renamed
        args, kwargs = _mapped(args, change), {name: _mapped(one, change) for name, one in kwargs.items()}
        result = (Tensor.double if func is Tensor.float else func)(*args, **kwargs)
        return result if dtypes else _mapped(result, _widened)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an argument with its parts changed; lists that have no such parts stay the same objects."""
    if isinstance(value, list) or type(value) is tuple:
        parts = [_mapped(part, change) for part in value]
        is_same = all(one is other for one, other in zip(parts, value, strict=True))
        return value if is_same else type(value)(parts)
    return change(value)


def _renamed(value: Any) -> Any:
    """Return double precision for the name of single precision."""
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _widened(value: Any) -> Any:
    """Return a tensor of single precision in double precision, and a renamed dtype."""
    if type(value) is Tensor and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return _renamed(value)


def _from_numpy(original: Callable[[Any], Tensor], array: Any) -> Tensor:
    tensor: Tensor = _widened(original(array))
    return tensor
