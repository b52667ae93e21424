"""Hands on the calls of modules that no other module calls, to be split."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from samestep.autopilot.equivalence.weight_access import calling, reading
from samestep.autopilot.split import bypassed_modules
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.slice_call import Forward
from samestep.autopilot.split.slice_context import current_slice
from samestep.autopilot.state.reachable_state import is_compiled
from samestep.base.errors import UsageError
from samestep.hooks import declarations, module_parts
from samestep.hooks.registry import attached_all, named, wrapping
from samestep.hooks.tensor_tree import parts_beside_tensors

_receivers: list["SplitsCalls"] = []
"""The receivers of the calls of this process."""
is_inside: ContextVar[bool] = ContextVar("samestep_is_inside", default=False)
"""Whether a module call is running here: calls of its submodules are not split themselves."""

WRAPPERS = frozenset({"_FabricModule"})
"""Names of libraries' modules whose call does more than that of the module inside, which is split instead.

Fabric registers a hook on each output, which needs the gradient of the whole batch.
"""
NO_TENSORS = "it is called without dense tensors that have dimensions"
OF_ARRAYS = "it is called with NumPy arrays; convert them to tensors before the call"
OF_PACKED = "it is called with a PackedSequence; a module that packs the sequences itself can be split"
LAZY = "its parameters have no shapes before its first call"
OTHER_STATE = "it goes on from the state of a batch of another size"


class SplitsCalls(Protocol):
    """A receiver of the calls of modules that no other module calls."""

    @property
    def gradients(self) -> Any:
        """The averages of gradients that a forward computes itself."""

    def __call__(
        self, forward: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module."""

    forward: Forward
    module: nn.Module
    arguments: CallArguments

    def unsplit(self) -> Any:
        """Return the outputs, computed for the whole batch on this rank."""
        return self.forward(self.module, *self.arguments.args, **self.arguments.kwargs)

    def without_samples(self) -> str:
        """Return the reason for which a call without tensors is unsplit."""
        values = [value for _, value in parts_beside_tensors(self.arguments.both)]
        reasons = (np.ndarray, OF_ARRAYS), (PackedSequence, OF_PACKED)
        matching = (why for kind, why in reasons if any(isinstance(value, kind) for value in values))
        return next(matching, NO_TENSORS)

    @property
    def name(self) -> str:
        """The class of the module."""
        return type(self.module).__name__

    @property
    def device_type(self) -> str:
        """The type of the device of the module's first weight, or of the first tensor of a call without."""
        of_call = (tensor for _, tensor in self.arguments.tensors())
        first = next(chain(module_parts.parameters(self.module), of_call), None)
        return "cpu" if first is None else first.device.type


@contextmanager
def splitting_calls(calls: SplitsCalls) -> Iterator[None]:
    """Let `calls` split the module calls of every thread."""
    _receivers.append(calls)
    try:
        yield
    finally:
        _receivers.remove(calls)


def _current() -> SplitsCalls | None:
    """Return what splits the calls of this process."""
    return next(iter(_receivers), None)


@contextmanager
def intercepted_calls() -> Iterator[None]:
    """Replace `nn.Module.__call__` and tensor hooks, so that `splitting_calls` can split calls."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # it traces a compiled module
                return original(module, *args, **kwargs)
            calls = _current()
            if calls is None:
                with calling(module):
                    return original(module, *args, **kwargs)
            if is_inside.get():
                return original(module, *args, **kwargs)
            return calls(original, module, args, kwargs)

        return call

    def read_state(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with reading(module):
            return original(module, *args, **kwargs)

    def refused(action: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if current_slice.get() is not None:
            raise UsageError(f"{action} within a split call of a model gets a slice.")
        return original(*args, **kwargs)

    hooks = {
        declarations.SPLIT_CALL: named(make),  # TorchScript reads the signature
        declarations.STATE_READ: wrapping(read_state),
        declarations.TENSOR_HOOK: wrapping(partial(refused, "a hook on a tensor")),
        declarations.RETAINED_GRAD: wrapping(partial(refused, "retain_grad")),
    }
    with ExitStack() as stack:
        stack.enter_context(attached_all(hooks))
        stack.enter_context(bypassed_modules.functional_calls())
        yield


def current_gradients() -> Any:
    """Return the averages of gradients of this process's slices; None if no calls are split."""
    calls = _current()
    return None if calls is None else calls.gradients


def is_recomputed() -> bool:
    """Return whether a backward or a slice makes this call, as an activation checkpoint does."""
    is_in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public spelling
    return is_in_backward or current_slice.get() is not None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason for which a call is unsplit, whatever a check of it would find."""

    why: str
    of_parts: bool = True
    """Whether the calls of its parts are unsplit, too."""


def may_call_parts(module: nn.Module) -> bool:
    """Return whether a module has parts with weights whose calls can be found: those of no compiled code."""
    parts = (part for part in module.children() if next(module_parts.parameters(part), None) is not None)
    is_script = isinstance(module, torch.jit.ScriptModule)
    return next(parts, None) is not None and not is_script and not is_compiled(module)
