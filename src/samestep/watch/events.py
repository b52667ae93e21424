"""What every training loop passes, made known: calls of modules, backwards, optimizer steps, batches."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import getpid
from threading import get_ident
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

    place: tuple[int, int] | None = None
    """The process and the thread of which it wants to be told all; `hears` is asked of others alone."""
    is_in_call = False
    """Whether an outermost call is under way: whoever tells it says so."""

    def hears(self, *, learns: bool = False) -> bool:
        """Return whether it wants to be told of what this thread does.

        Args:
            learns: whether that is a backward or an optimizer's step.
        """
        del learns
        return True

    def call(
        self, module: nn.Module, given: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any] | None:
        """Return what an outermost call of a module with parameters is made within; None for nothing.

        Args:
            module: what is called.
            given: its arguments.
            is_training: whether it is in training mode and with gradients.
        """
        del module, given, is_training
        return None

    def returned(self, outputs: Any) -> None:
        """Be told, within what `call` returned, what the module returns."""

    def backward(self, losses: Sequence[Tensor]) -> AbstractContextManager[Any] | None:
        """Return what an outermost backward from `losses` is made within; None for nothing."""
        del losses
        return None

    def loading(self) -> AbstractContextManager[Any] | None:
        """Return what the next batch of a DataLoader is asked for within; None for nothing."""
        return None

    def before_step(self, optimizer: Optimizer) -> None:
        """Be told that an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Be told that it has."""


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Within, `listener` is told of what happens in this process."""
    heard = _Heard(listener)
    with ExitStack() as stack:
        for owner, name, make in (
            (nn.Module, "__call__", heard.calling),
            # Outside of whatever exchanges gradients at the end of torch.autograd.backward.
            (Tensor, "backward", heard.differentiating),
            (torch.autograd, "backward", heard.differentiating),
            (LoaderIterator, "__next__", heard.loading),
        ):
            stack.enter_context(remade(owner, name, make))
        for hook in (
            register_optimizer_step_pre_hook(heard.before_step),
            register_optimizer_step_post_hook(heard.after_step),
        ):
            stack.callback(hook.remove)
        yield


def remade(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> AbstractContextManager[Any]:
    """Return what has a function be what `make` makes of it: one call more, where `redirected` has two."""
    original: Callable[..., Any] = getattr(owner, name)
    return patch.object(owner, name, functools.wraps(original)(make(original)))


def redirected(owner: Any, name: str, wrap: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Return what has a function go through `wrap`, which is given it before its arguments."""

    def through(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: wrap(original, *args, **kwargs)

    return remade(owner, name, through)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of all groups, in order."""
    return [one for group in optimizer.param_groups for one in group["params"]]


class _Heard:
    """Tells a listener of the outermost of each kind.

    What it makes is called in every step, after a model's work has put everything else into the caches: each
    function that is called is then paid for some ten times over, and there are no more than need be.

    Args:
        listener: is told.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_in_backward = False
        self._stepping: Optimizer | None = None
        self._last: ref[nn.Module] | None = None
        """What was called last, and has parameters."""

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a module is called by."""
        listener = self._listener

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if listener.is_in_call:
                return original(module, *args, **kwargs)
            if self._last is None or self._last() is not module:
                if not _has_parameters(module):
                    return original(module, *args, **kwargs)
                self._last = ref(module)
            if not ((listener.place and listener.place == (getpid(), get_ident())) or listener.hears()):
                return original(module, *args, **kwargs)
            is_training = module.training and torch.is_grad_enabled()
            listener.is_in_call = True
            try:
                within = listener.call(module, (*args, *kwargs.values()), is_training=is_training)
                if within is None:
                    return original(module, *args, **kwargs)
                with within:
                    outputs = original(module, *args, **kwargs)
                    listener.returned(outputs)
                    return outputs
            finally:
                listener.is_in_call = False

        return call

    def differentiating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a backward is begun by."""
        listener = self._listener

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            is_heard = not self._is_in_backward and (
                (listener.place and listener.place == (getpid(), get_ident())) or listener.hears(learns=True)
            )
            if not is_heard:
                original(tensors, *args, **kwargs)
                return
            losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self._is_in_backward = True
            try:
                within = listener.backward(losses)
                if within is None:
                    original(tensors, *args, **kwargs)
                    return
                with within:
                    original(tensors, *args, **kwargs)
            finally:
                self._is_in_backward = False

        return backward

    def loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what the next batch is asked for by."""
        listener = self._listener

        def next_batch(iterator: Any) -> Any:
            within = listener.loading()
            if within is None:
                return original(iterator)
            with within:
                return original(iterator)

        return next_batch

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        # One may step others within, as ZeroRedundancyOptimizer does; and again, if its step has failed.
        listener = self._listener
        if self._stepping in (None, optimizer) and (
            (listener.place and listener.place == (getpid(), get_ident())) or listener.hears(learns=True)
        ):
            self._stepping = optimizer
            listener.before_step(optimizer)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping is optimizer:
            self._stepping = None
            self._listener.after_step(optimizer)


def _has_parameters(module: nn.Module) -> bool:
    kind = type(module)
    tells_itself = (kind.parameters, kind.named_parameters) != (
        nn.Module.parameters,
        nn.Module.named_parameters,
    )
    # Most losses have neither, and are called in each step.
    if not (tells_itself or module._parameters or module._modules):  # noqa: SLF001
        return False
    return next(module.parameters(), None) is not None
