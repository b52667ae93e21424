"""Sending calls of one module elsewhere, without wrapping it and without changing its class."""

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

Forward = Callable[..., Any]
Undo = Callable[[], None]


def original_forward(module: nn.Module) -> Forward:
    """Return the forward that `module` has now: its own one, or its class's."""
    forward: Forward = module.forward
    return forward


def redirect(module: nn.Module, replacement: Forward) -> Undo:
    """Make calls of `module` run ``replacement(module, ...)``; return what undoes it.

    Keys, class and hooks of the module stay as they are. A deep copy is redirected too, bound to the
    copy; a pickled module comes back plain, because a bound method is pickled by its name, which is made
    to be ``forward``.
    """
    own = vars(module).get("forward")

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return replacement(self, *args, **kwargs)

    vars(module)["forward"] = MethodType(forward, module)

    def undo() -> None:
        if own is None:
            vars(module).pop("forward", None)
        else:
            vars(module)["forward"] = own

    return undo
