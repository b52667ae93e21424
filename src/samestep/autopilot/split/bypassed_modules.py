"""Finds computations with weights that bypass the call of a module; only calls of modules are split.

``model.forward(x)`` bypasses the call: the model's layers are then called one by one, and a model that
computes with its own parameters has no call at all. ``functional_call`` stays unsplit: its weights may be new
tensors in each call, whose gradients are not averaged. A script may also keep weights in plain tensors.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from samestep.autopilot.script.call_account import Account, Site, called_in_parts, is_user_code, is_users_code
from samestep.autopilot.split.gradients import leaves_of
from samestep.autopilot.split.slice_context import is_checkpointed
from samestep.hooks import declarations, module_parts
from samestep.hooks.registry import attached, wrapping
from samestep.hooks.thread_values import bound
from samestep.hooks.training_events import is_transformed

CAPTURED = "a CUDA graph captures it"
_FILES = 100  # the largest number of user-defined source files that are read: a guess
_is_functional: ContextVar[bool] = ContextVar("samestep_functional", default=False)
"""Whether the calling thread runs `functional_call`."""


@contextmanager
def functional_calls() -> Iterator[None]:
    """Record for `obstacle` that `torch.func.functional_call` is running."""

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with bound(_is_functional, True):  # noqa: FBT003 - the value
            return original(*args, **kwargs)

    with attached(declarations.FUNCTIONAL_CALL, wrapping(call)):  # behind both public functions
        yield


def obstacle() -> str | None:
    """Return why a call within a transform, a capture or `functional_call` is unsplit; None elsewhere."""
    if _is_functional.get():
        return "functional_call passes its weights; load them into the module and call it"
    if is_checkpointed.get():
        return "an activation checkpoint calls it, outside of any call that is split"
    if is_transformed() or torch._C._get_tracing_state():  # noqa: SLF001 - no public spelling
        return "a transform of torch.func or a trace calls it"
    if forward_ad._current_level >= 0:  # noqa: SLF001 - no public spelling
        return "derivatives are computed forward, with the outputs"
    is_open = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_open and torch.cuda.is_current_stream_capturing():  # a graph cannot contain messages to helpers
        return CAPTURED
    return None


def note_direct_forward(account: Account, module: nn.Module) -> None:
    """Record, once, that a module is called from a `forward` that was called directly.

    This reads a local variable of each running `forward`, its module: a direct call passes no function that
    can be hooked, and a copied or loaded module has not registered its children with any hook.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the public way copies the whole stack
    while frame is not None:
        owner = _owner(frame)
        if (
            owner is not None
            and owner is not module
            and all(called is not owner for called in called_in_parts.get())
            and any(part is module for part in module_parts.modules(owner))
        ):
            site = _caller(frame)
            if site is not None:
                account.note_exception(
                    f"{type(owner).__name__}.forward is called directly at {site}: its layers are split "
                    "one by one, which is slower; call the model itself"
                )
        frame = frame.f_back


def _owner(frame: FrameType) -> nn.Module | None:
    """Return the module whose `forward` a frame runs."""
    code: CodeType = frame.f_code
    if code.co_name != "forward" or not code.co_argcount:
        return None
    owner = frame.f_locals.get(code.co_varnames[0])
    return owner if isinstance(owner, nn.Module) else None


def _caller(frame: FrameType) -> Site | None:
    """Return the line that calls a frame, if it is user code."""
    caller = frame.f_back
    if caller is None or not is_users_code(caller.f_code, caller.f_globals):
        return None
    return Site(caller.f_code.co_filename, caller.f_lineno)


def plain_weights(losses: Any) -> list[str]:
    """Return the shapes of the tensors, except parameters, to which a backward from these losses leads.

    An iterator of losses is left to the backward, and so is an edge of a graph, which stands for a loss.
    """
    roots = [losses] if isinstance(losses, Tensor) else losses if isinstance(losses, (list, tuple)) else []
    roots = [root for root in roots if isinstance(root, Tensor)]
    weights = [leaf for leaf in leaves_of(*roots) if not isinstance(leaf, nn.Parameter)]
    return [str(list(leaf.shape)) for leaf in weights]


def direct_forwards() -> list[str]:
    """Return the direct calls of `forward` in user code, each as ``m.forward(...) at train.py:12``."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    scripts = [file for file in dict.fromkeys(files) if file and file.endswith(".py") and is_user_code(file)]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    scripts.sort(key=lambda file: file != main)
    return [call for file in scripts[:_FILES] for call in _in_file(Path(file))]


def _in_file(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(called, ast.Attribute) or called.attr != "forward":
            continue
        if isinstance(called.value, ast.Name | ast.Attribute):  # not super()
            yield f"{ast.unparse(called.value)}.forward(...) at {Site(str(file), called.lineno)}"


def note_unused_workers(account: Account) -> None:
    """Record why no call of a script or of its training was split, and what to change, in one line."""
    if account.size == 1:
        return
    advice = None if account.has_called else _advice(account)
    if not account.split and account.counts:
        account.note_exception("no call was split, so the other workers had nothing to do")
    elif not account.split:
        account.note_exception(f"nothing was split: {advice or 'it calls no module with parameters'}")
    elif advice:
        account.note_exception(f"no call of the training was split: {advice}")


def _advice(account: Account) -> str | None:
    """Return how a script computes with weights but by calls of modules, and what to change, if it does."""
    direct = direct_forwards()
    if direct:
        more = f" and {len(direct) - 1} more" if len(direct) > 1 else ""
        called = direct[0].partition(".forward(")[0]
        return f"it calls {direct[0]}{more} instead of the module: write {called}(...)"
    if account.plain_weights:
        shapes = ", ".join(account.plain_weights[:3]) + (", ..." if len(account.plain_weights) > 3 else "")
        return (
            f"it computes with weights that belong to no module ({shapes}): make them parameters of an "
            "nn.Module and call that"
        )
    return None
