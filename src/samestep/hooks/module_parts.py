"""Finds the submodules and tensors of a module as `nn.Module` registers them, and replaces its forward.

The class of a script's module may replace `parameters` or `modules` by a method that yields other tensors or
wants arguments, and the module itself by an attribute of that name. A call depends on what is registered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import is_
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn


def named_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and its submodules, each once, in the order of `nn.Module.named_modules`."""
    seen: set[int] = set()
    waiting = [(prefix, module)]
    while waiting:
        name, owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        yield name, owner
        parts = [(_joined(name, key), part) for key, part in owner._modules.items() if part is not None]  # noqa: SLF001
        waiting += reversed(parts)


def modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its submodules, each once, in the same order."""
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        owner = waiting.pop()
        if id(owner) not in seen:
            seen.add(id(owner))
            yield owner
            if owner._modules:  # noqa: SLF001 - most have none
                waiting += [part for part in reversed(owner._modules.values()) if part is not None]  # noqa: SLF001


def named_parameters(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module, each once, in the order of `nn.Module.named_parameters`."""
    seen: set[int] = set()
    for name, owner in named_modules(module, prefix):
        for key, parameter in owner._parameters.items():  # noqa: SLF001
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield _joined(name, key), parameter


def parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module, each once; this runs in each call, so it makes no names."""
    seen: set[int] = set()
    for owner in modules(module):
        for parameter in owner._parameters.values():  # noqa: SLF001
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def named_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of a module, each once, in the order of `nn.Module.named_buffers`."""
    seen: set[int] = set()
    for name, owner in named_modules(module):
        for key, buffer in owner._buffers.items():  # noqa: SLF001
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                yield _joined(name, key), buffer


def buffers(module: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers of a module, each once."""
    return (buffer for _, buffer in named_buffers(module))


def submodule(module: nn.Module, name: str) -> nn.Module:
    """Return the submodule of a name of `named_modules`."""
    for key in name.split(".") if name else ():
        part = module._modules[key]  # noqa: SLF001
        assert part is not None
        module = part
    return module


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


Forward = Callable[..., Any]
Undo = Callable[[], None]


def original_forward(module: nn.Module) -> Forward:
    """Return the forward that `module` has now: an attribute, or its class's method."""
    forward: Forward = module.forward
    return forward


_REDIRECTION = "__samestep_redirection__"
"""Attribute of a forward that `redirect` has made: a reference to its module, and the forward before it."""


def own_forward(module: nn.Module) -> Forward:
    """Return the function that is the forward of `module`, its class's if it has no other.

    A copy of a redirected module has the new forward, too, which runs the original: that one is returned.
    """
    function: Any = vars(module).get("forward")
    if isinstance(function, MethodType) and function.__self__ is module:
        function = function.__func__
    while (redirection := getattr(function, _REDIRECTION, None)) is not None:
        redirected, before = redirection
        if redirected() is module:
            break
        function = before
    forward: Forward = type(module).forward if function is None else function
    return forward


def redirect(module: nn.Module, replacement: Forward, *, compiled: bool = True) -> Undo:
    """Make calls of `module` run ``replacement(module, ...)``; return a function that undoes this.

    Keys, class and hooks of the module do not change. Only this module is redirected: a deep copy copies the
    new forward, which runs the original there. A pickled module is loaded without it, because a bound method
    is pickled by its name, which is ``forward``. The returned function does not keep the module alive.

    Args:
        module: the module.
        replacement: runs instead of its forward.
        compiled: False excludes the replacement from `torch.compile`.
    """
    attribute = vars(module).get("forward")
    if isinstance(attribute, MethodType) and attribute.__self__ is module:
        before: Forward | None = attribute.__func__
        bound = True
    else:
        before, bound = attribute, False
    here, attached = ref(module), True

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if attached and self is here():
            return replacement(self, *args, **kwargs)
        if before is None:
            return type(self).forward(self, *args, **kwargs)
        return before(self, *args, **kwargs) if bound else before(*args, **kwargs)

    if not compiled:
        forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
    setattr(forward, _REDIRECTION, (here, before))
    vars(module)["forward"] = MethodType(forward, module)

    def undo() -> None:
        nonlocal attached
        attached = False
        target = here()
        if target is None:
            return
        if before is None:
            vars(target).pop("forward", None)
        else:
            vars(target)["forward"] = MethodType(before, target) if bound else before

    return undo


@dataclass(frozen=True, slots=True)
class Methods:
    """The methods of a class of modules, which a script may replace."""

    members: list[Any]
    number: int
    """It changes with the code of one of them."""
    are_torchs: bool


_methods: "WeakKeyDictionary[type[nn.Module], Methods]" = WeakKeyDictionary()
"""The methods of torch's layers when they were last read, all functions torch's own."""


def methods_of(kind: type[nn.Module]) -> Methods:
    """Return the methods that a class of modules has now, beside those of `nn.Module`."""
    owners = kind.__mro__[: kind.__mro__.index(nn.Module)]
    members = [member for owner in owners for member in [*vars(owner).values()]]  # other threads may add some
    known = _methods.get(kind)
    if known is not None and len(members) == len(known.members) and all(map(is_, members, known.members)):
        return known
    functions = [member for member in members if isinstance(member, FunctionType)]
    number = hash(tuple(id(function.__code__) for function in functions))
    files = (str(function.__globals__.get("__name__")) for function in functions)
    methods = Methods(members, number, all(file.startswith("torch.") for file in files))
    if methods.are_torchs:  # others may get other code
        _methods[kind] = methods
    return methods
