"""Implements ``--device cpu``: runs a script that names CUDA devices on the CPU.

Nearly everything that takes a device is an operation of torch, and goes through one mode here. The rest
(`torch.load`, `torch.Generator`, the functions of `torch.cuda`) is replaced while the script runs. To the
script these report one GPU, because many scripts exit without one; to torch and to installed libraries they
report the actual devices.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from samestep.autopilot.script.call_account import is_internal_code
from samestep.autopilot.script.cuda_stand_ins import DEVICE_ANSWERS, STAND_INS
from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, attached_all, instead

_NAME = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")


class OntoCpu(TorchFunctionMode):
    """A context in which operations that name a CUDA device mean the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None:
            return replacement(func, args, kwargs or {})
        if kwargs:
            kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
            if isinstance(kwargs.get("device"), int):
                kwargs["device"] = _CPU
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
        return func(*map(_on_cpu, args), **(kwargs or {}))


@contextmanager
def onto_cpu() -> Iterator[None]:
    """Let the calling thread compute on the CPU, whatever device it names."""
    import_module("torch._dynamo")  # collects torch's functions, before they are replaced
    hooks: dict[Hook, Make] = {
        declarations.LOADED: _loading,
        declarations.GENERATOR: instead(_Generator),
        declarations.DEFAULT_TENSOR_TYPE: _typing,
        **{hook: instead(getattr(torch, hook.attribute)) for hook in declarations.CUDA_TYPES},
        **{declarations.cuda(name): instead(value) for name, value in STAND_INS.items()},
        **{
            hook: partial(_answering, value=value)
            for hook, value in zip(declarations.DEVICE_ANSWERS, DEVICE_ANSWERS, strict=True)
        },
    }
    with attached_all(hooks), OntoCpu():
        yield


def _on_cpu(value: Any) -> Any:
    """Return the CPU for the name of a CUDA device, and a CPU type for a CUDA tensor type."""
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    if isinstance(value, str):
        return "cpu" if _NAME.fullmatch(value) else value.replace("torch.cuda.", "torch.")
    return value


def _itself(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> Any:
    """Replace ``x.cuda()`` and ``x.pin_memory()``: return the tensor."""
    return args[0]


def _device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Replace ``torch.device("cuda", 1)`` and ``torch.device(0)``: return the CPU."""
    named = [*args, *kwargs.values()]
    if any(isinstance(one, int) for one in named) or any(_on_cpu(one) is not one for one in named):
        return _CPU
    result: torch.device = func(*args, **kwargs)
    return result


def _to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Replace ``x.to(0)`` and ``module.to("cuda:0")``; a number is a device."""
    args = ["cpu" if type(one) is int else _on_cpu(one) for one in args]
    kwargs = {
        name: _CPU if name == "device" and value is not None else value for name, value in kwargs.items()
    }
    return func(*args, **kwargs)


_REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    Tensor.cuda: _itself,
    Tensor.pin_memory: _itself,
    Tensor.record_stream: lambda *_: None,
    Tensor.to: _to,
    torch._C._nn._parse_to: _to,  # noqa: SLF001 - called by `Module.to`
    torch.device: _device,
}


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, _RealGenerator)


_RealGenerator = torch.Generator


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """A CPU generator, for any requested device."""

    def __new__(cls, device: Any = None) -> "_Generator":  # noqa: ARG004 - the signature of torch
        generator: _Generator = _RealGenerator.__new__(cls, _CPU)  # type: ignore[call-arg]
        return generator


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: Any, *where: Any, **kwargs: Any) -> Any:
        """Load everything onto the CPU, whatever `map_location` is."""
        kwargs.pop("map_location", None)
        return original(f, _CPU, *where[1:], **kwargs)

    return load


def _typing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_default_tensor_type(kind: Any) -> None:
        original(_on_cpu(kind))

    return set_default_tensor_type


def _answering(original: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """Return a function that returns `value` to the script, and calls `original` for torch and libraries."""

    @functools.wraps(original)
    def answer(*args: Any, **kwargs: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the public way copies the whole stack
        if not is_internal_code(file) and "-packages" not in file:
            return value
        return original(*args, **kwargs)

    return answer
