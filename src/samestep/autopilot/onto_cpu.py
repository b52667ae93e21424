"""``--device cpu``: a script that says cuda everywhere, on the CPU, as if it had said cpu.

Nearly everything that names a device is an operation of torch, and goes through one mode here. What does not
(`torch.load`, `torch.Generator`, the functions of `torch.cuda`) is replaced for the time of the script. It is
told that there is one GPU, because many scripts end where there is none; torch itself and installed
libraries are told the truth.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from samestep.autopilot.account import is_passed_by
from samestep.autopilot.cuda_stand_ins import STAND_INS, TENSOR_TYPES, TOLD

_NAME = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")


class OntoCpu(TorchFunctionMode):
    """A context in which operations that name a CUDA device mean the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        how = _HOW.get(func)
        if how is not None:
            return how(func, args, kwargs or {})
        if kwargs:
            kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
            if isinstance(kwargs.get("device"), int):
                kwargs["device"] = _CPU
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
        return func(*map(_on_cpu, args), **(kwargs or {}))


@contextmanager
def onto_cpu() -> Iterator[None]:
    """Within, the calling thread computes on the CPU whatever device it names."""
    import_module("torch._dynamo")  # makes a table of torch's functions, which must be torch's
    replaced: list[tuple[Any, str, Any]] = [
        (torch, "load", _loading(torch.load)),
        (torch, "Generator", _Generator),
        (torch, "set_default_tensor_type", _typing(torch.set_default_tensor_type)),
        *((torch.cuda, name, getattr(torch, name)) for name in TENSOR_TYPES),
        *((torch.cuda, name, value) for name, value in STAND_INS.items()),
        *((owner, name, _told(getattr(owner, name), value)) for owner, name, value in TOLD),
    ]
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(OntoCpu())
        yield


def _on_cpu(value: Any) -> Any:
    """Return what stands for `value` here, if that names a CUDA device, or a type of tensors there."""
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    if isinstance(value, str):
        return "cpu" if _NAME.fullmatch(value) else value.replace("torch.cuda.", "torch.")
    return value


def _itself(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> Any:
    """``x.cuda()``, ``x.pin_memory()``: the tensor is where it is to be."""
    return args[0]


def _device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """``torch.device("cuda", 1)``, ``torch.device(0)``."""
    named = [*args, *kwargs.values()]
    if any(isinstance(one, int) for one in named) or any(_on_cpu(one) is not one for one in named):
        return _CPU
    result: torch.device = func(*args, **kwargs)
    return result


def _to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``x.to(0)``, ``module.to("cuda:0")``: a number is a device."""
    args = ["cpu" if type(one) is int else _on_cpu(one) for one in args]
    kwargs = {
        name: _CPU if name == "device" and value is not None else value for name, value in kwargs.items()
    }
    return func(*args, **kwargs)


_HOW: Mapping[Any, Callable[..., Any]] = {
    Tensor.cuda: _itself,
    Tensor.pin_memory: _itself,
    Tensor.record_stream: lambda *_: None,
    Tensor.to: _to,
    torch._C._nn._parse_to: _to,  # noqa: SLF001 - of `Module.to`
    torch.device: _device,
}


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, _RealGenerator)


_RealGenerator = torch.Generator


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """A generator of the CPU, whatever device it is asked for."""

    def __new__(cls, device: Any = None) -> "_Generator":  # noqa: ARG004 - as one is made
        generator: _Generator = _RealGenerator.__new__(cls, _CPU)  # type: ignore[call-arg]
        return generator


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: Any, *where: Any, **kwargs: Any) -> Any:
        """Load everything onto the CPU, wherever it was saved or is asked for."""
        kwargs.pop("map_location", None)
        return original(f, _CPU, *where[1:], **kwargs)

    return load


def _typing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_default_tensor_type(kind: Any) -> None:
        original(_on_cpu(kind))

    return set_default_tensor_type


def _told(original: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """Return a function that gives `value` to the script, and the truth to torch and to libraries."""

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the public way copies the whole stack
        if not is_passed_by(file) and "-packages" not in file:
            return value
        return original(*args, **kwargs)

    return told
