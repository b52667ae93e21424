"""Reports the events of a training loop to a listener: module calls, backwards, optimizer steps, batches.

The methods that report are excluded from `torch.compile` although compiled code calls them: Dynamo would
compile each with guards on all that it reads, and recompile when that changes, which is in every step.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import getpid
from threading import get_ident
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from samestep.base.worker_records import callers
from samestep.hooks import declarations, module_parts
from samestep.hooks.registry import attached, attached_all, named


class Listener:
    """Receives the events of a script; each method here does nothing."""

    thread: tuple[int, int] | None = None
    """Ids of the process and thread whose events are all received; `accepts` is called for any other."""
    is_in_call = False
    """Whether a top-level forward is running; the source of the events sets it."""

    def accepts(self, *, trains: bool = False) -> bool:
        """Return whether events of the calling thread are received.

        Args:
            trains: whether the event is a backward or an optimizer step.
        """
        del trains
        return True

    def call(
        self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any] | None:
        """Return a context for the top-level forward of a module with parameters; None for no context.

        Args:
            module: the module.
            inputs: its arguments.
            is_training: whether it is in training mode with gradients enabled.
        """
        del module, inputs, is_training
        return None

    def returned(self, outputs: Any) -> None:
        """Receive the outputs of a module, inside the context that `call` returned."""

    def backward(self, losses: Sequence[Tensor]) -> AbstractContextManager[Any] | None:
        """Return a context for a top-level backward from `losses`; None for no context."""
        del losses
        return None

    def loading(self) -> AbstractContextManager[Any] | None:
        """Return a context for the request of the next batch of a DataLoader; None for no context."""
        return None

    def before_step(self, optimizer: Optimizer) -> None:
        """Receive that an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Receive that an optimizer has stepped."""


class OnExit:
    """A reentrant context manager without state that calls a function at its exit."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._callback()


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    """Report the events of this process to `listener` for the duration of a block."""
    source = _EventSource(listener)
    with ExitStack() as stack:
        hooks = {
            declarations.MODULE_CALL: named(source.wrap_call),
            # Outside of the gradient all-reduce, which ends torch.autograd.backward.
            declarations.TENSOR_BACKWARD: named(source.wrap_backward),
            declarations.AUTOGRAD_BACKWARD: named(source.wrap_backward),
            declarations.NEXT_BATCH: named(source.wrap_next),
        }
        stack.enter_context(attached_all(hooks))
        for hook in (
            register_optimizer_step_pre_hook(source.before_step),
            register_optimizer_step_post_hook(source.after_step),
        ):
            stack.callback(hook.remove)
        yield


@contextmanager
def optimizer_steps(after: Callable[[Optimizer], None]) -> Iterator[None]:
    """Call a function after each step of an optimizer of this process for the duration of a block."""
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: after(optimizer))
    try:
        yield
    finally:
        hook.remove()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_transformed() -> bool:
    """Return whether a transform of torch.func, such as `vmap`, runs: its tensors have no values to read."""
    return torch._C._functorch.maybe_current_level() is not None  # noqa: SLF001 - no public spelling


class _EventSource:
    """Reports top-level calls, backwards and optimizer steps to a listener.

    Its wrappers run in every step, after the model's work has evicted everything else from the caches, where
    a Python call costs about ten times as much. So they call as few functions as possible.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_in_backward = False
        self._stepping: Optimizer | None = None
        self._last: ref[nn.Module] | None = None  # the module with parameters that was called last

    def wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of `nn.Module.__call__`."""
        listener = self._listener

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if listener.is_in_call:
                return original(module, *args, **kwargs)
            if self._last is None or self._last() is not module:
                if not _has_parameters(module):
                    return original(module, *args, **kwargs)
                self._last = ref(module)
            if not ((listener.thread and listener.thread == (getpid(), get_ident())) or listener.accepts()):
                return original(module, *args, **kwargs)
            if is_transformed():
                return original(module, *args, **kwargs)
            is_training = module.training and torch.is_grad_enabled()
            listener.is_in_call = True
            try:
                context = listener.call(module, (*args, *kwargs.values()), is_training=is_training)
                if context is None:
                    return original(module, *args, **kwargs)
                with context:
                    outputs = original(module, *args, **kwargs)
                    listener.returned(outputs)
                    return outputs
            finally:
                listener.is_in_call = False

        return call

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of `torch.autograd.backward` and `Tensor.backward`."""
        listener = self._listener

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            is_reported = not self._is_in_backward and (
                (listener.thread and listener.thread == (getpid(), get_ident()))
                or listener.accepts(trains=True)
            )
            if not is_reported:
                original(tensors, *args, **kwargs)
                return
            is_single = isinstance(tensors, (Tensor, GradientEdge))
            tensors = tensors if is_single else tuple(tensors)  # as torch does: it may be an iterator
            roots = (tensors,) if is_single else tensors
            losses = [root for root in roots if isinstance(root, Tensor)]
            self._is_in_backward = True
            try:
                context = listener.backward(losses)
                if context is None:
                    original(tensors, *args, **kwargs)
                    return
                with context:
                    original(tensors, *args, **kwargs)
            finally:
                self._is_in_backward = False

        return backward

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement of `__next__` of a DataLoader's iterator."""
        listener = self._listener

        def next_batch(iterator: Any) -> Any:
            context = listener.loading()
            if context is None:
                return original(iterator)
            with context:
                return original(iterator)

        return next_batch

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        listener = self._listener
        if (self._stepping in (None, optimizer) or not _steps_now(self._stepping)) and (
            (listener.thread and listener.thread == (getpid(), get_ident())) or listener.accepts(trains=True)
        ):
            self._stepping = optimizer
            listener.before_step(optimizer)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping is optimizer:
            self._stepping = None
            self._listener.after_step(optimizer)


def _steps_now(outer: Optimizer | None) -> bool:
    """Return whether a hook is called inside a step of `outer`, as those that ZeroRedundancyOptimizer makes.

    A step that has raised an error has no end that a hook sees.
    """
    step = sys._getframe(2)  # noqa: SLF001 - torch's function around a step, which calls the hooks
    calling = (frame for frame in callers(step.f_back) if frame.f_code is step.f_code)
    return any(frame.f_locals.get("self") is outer for frame in calling)


def _has_parameters(module: nn.Module) -> bool:
    kind = type(module)
    overrides = (kind.parameters, kind.named_parameters) != (nn.Module.parameters, nn.Module.named_parameters)
    # Most losses have neither parameters nor parts, and are called in each step.
    if (module._parameters or module._modules) and next(module_parts.parameters(module), None) is not None:  # noqa: SLF001
        return True
    return overrides and next(iter(module.parameters()), None) is not None


_skipped_folders: set[str] = set()


@contextmanager
def uncompiled(owner: type) -> Iterator[None]:
    """Exclude a class's methods, and the functions they call, from compilation inside a block."""
    methods = [member for member in vars(owner).values() if isinstance(member, FunctionType)]

    def marking(compiling: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            _mark(methods)
            return compiling(*args, **kwargs)

        return call

    if "torch._dynamo" in sys.modules:  # importing it takes more than a second
        _mark(methods)
    with attached(declarations.COMPILE, named(marking)):
        yield


def _mark(methods: list[FunctionType]) -> None:
    # The public spelling gives another function.
    from torch._dynamo import decorators, eval_frame, trace_rules

    dynamo: Any = eval_frame
    if not hasattr(dynamo, "FrameExecStrategy"):  # torch 2.6 can only skip files
        folders = {__package__, *(method.__module__.rpartition(".")[0] for method in methods)}
        for folder in folders - _skipped_folders:
            trace_rules.add(folder)
            _skipped_folders.add(folder)
        return
    for method in methods:
        decorators.skip(method)
        # Some versions compile the functions that a skipped one calls.
        skip = dynamo.FrameAction.SKIP
        dynamo.set_code_exec_strategy(method.__code__, dynamo.FrameExecStrategy(skip, skip))
