"""What every training loop passes, made known: calls of modules, backwards, optimizer steps, batches."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator


class Listener:
    """Is told of what happens in a script; each method here does nothing."""

    def hears(self, *, learns: bool = False) -> bool:
        """Return whether it wants to be told of what this thread does.

        Args:
            learns: whether that is a backward or an optimizer's step.
        """
        del learns
        return True

    def call(
        self, module: nn.Module, given: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any]:
        """Return what an outermost call of a module with parameters is made within.

        Args:
            module: what is called.
            given: its arguments.
            is_training: whether it is in training mode and with gradients.
        """
        del module, given, is_training
        return nullcontext()

    def returned(self, outputs: Any) -> None:
        """Be told, within a call, what the module returns."""

    def backward(self, losses: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Return what an outermost backward from `losses` is made within."""
        del losses
        return nullcontext()

    def loading(self) -> AbstractContextManager[Any]:
        """Return what the next batch of a DataLoader is asked for within."""
        return nullcontext()

    def before_step(self, optimizer: Optimizer) -> None:
        """Be told that an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Be told that it has."""


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Within, `listener` is told of what happens in this process."""
    heard = _Heard(listener)
    with ExitStack() as stack:
        stack.enter_context(patch.object(nn.Module, "__call__", heard.calling(nn.Module.__call__)))
        for owner, name, wrap in (
            # Outside of whatever exchanges gradients at the end of torch.autograd.backward.
            (Tensor, "backward", heard.backward),
            (torch.autograd, "backward", heard.backward),
            (LoaderIterator, "__next__", heard.next_batch),
        ):
            stack.enter_context(redirected(owner, name, wrap))
        for hook in (
            register_optimizer_step_pre_hook(heard.before_step),
            register_optimizer_step_post_hook(heard.after_step),
        ):
            stack.callback(hook.remove)
        yield


def redirected(owner: Any, name: str, wrap: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Return what has a function go through `wrap`, which is given it before its arguments."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrap(original, *args, **kwargs)

    return patch.object(owner, name, call)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups, in order."""
    return [one for group in optimizer.param_groups for one in group["params"]]


class _Heard:
    """Tells a listener of the outermost of each kind.

    Args:
        listener: is told.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_in_call = self._is_in_backward = False
        self._stepping: Optimizer | None = None
        self._last: ref[nn.Module] | None = None
        """What was called last, and has parameters."""

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a module is called by: one function more for those that are called within another."""

        @functools.wraps(original)
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if self._is_in_call or not self._is_heard(module):
                return original(module, *args, **kwargs)
            is_training = torch.is_grad_enabled() and module.training
            self._is_in_call = True
            try:
                with self._listener.call(module, (*args, *kwargs.values()), is_training=is_training):
                    outputs = original(module, *args, **kwargs)
                    self._listener.returned(outputs)
                    return outputs
            finally:
                self._is_in_call = False

        return call

    def _is_heard(self, module: nn.Module) -> bool:
        """Return whether the listener wants to know of an outermost call; of most it is that of the last."""
        if self._last is None or self._last() is not module:
            if next(module.parameters(), None) is None:  # yet
                return False
            self._last = ref(module)
        return self._listener.hears()

    def backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_in_backward or not self._listener.hears(learns=True):
            original(tensors, *args, **kwargs)
            return
        losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._is_in_backward = True
        try:
            with self._listener.backward(losses):
                original(tensors, *args, **kwargs)
        finally:
            self._is_in_backward = False

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        # One may step others within, as ZeroRedundancyOptimizer does; and again, if its step has failed.
        if self._stepping in (None, optimizer) and self._listener.hears(learns=True):
            self._stepping = optimizer
            self._listener.before_step(optimizer)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping is optimizer:
            self._stepping = None
            self._listener.after_step(optimizer)

    def next_batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        with self._listener.loading():
            return original(iterator)
