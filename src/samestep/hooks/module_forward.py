"""Replaces the forward of one module, without wrapping it or changing its class."""

from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import ref

import torch
from torch import nn

Forward = Callable[..., Any]
Undo = Callable[[], None]


def original_forward(module: nn.Module) -> Forward:
    """Return the forward that `module` has now: an attribute, or its class's method."""
    forward: Forward = module.forward
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
    own = vars(module).get("forward")
    if isinstance(own, MethodType) and own.__self__ is module:
        before: Forward | None = own.__func__
        bound = True
    else:
        before, bound = own, False
    here, attached = ref(module), True

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if attached and self is here():
            return replacement(self, *args, **kwargs)
        if before is None:
            return type(self).forward(self, *args, **kwargs)
        return before(self, *args, **kwargs) if bound else before(*args, **kwargs)

    if not compiled:
        forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
    vars(module)["forward"] = MethodType(forward, module)

    def undo() -> None:
        nonlocal attached
        attached = False
        found = here()
        if found is None:
            return
        if before is None:
            vars(found).pop("forward", None)
        else:
            vars(found)["forward"] = MethodType(before, found) if bound else before

    return undo
