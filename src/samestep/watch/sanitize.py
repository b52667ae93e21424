"""Compares the ranks of a script at each backward and each step of an optimizer.

Nothing of the script is changed: its ranks meet once more, over a group of their own. What makes a run
meaningless ends it; what is probably not meant is said once.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from samestep.replicas.fingerprint import fingerprint
from samestep.watch.alike import Moment, check, suspicions
from samestep.watch.events import parameters_of
from samestep.watch.inputs import random_digest, rows_of
from samestep.watch.side import Side, beside
from samestep.watch.where import line_here

BACKWARD, STEP = "backward", "optimizer step"


class Sanitizer:
    """Compares this rank with the others.

    Args:
        side: the ranks.
        say: told what is probably not meant, on rank 0.
    """

    def __init__(self, side: Side, say: Callable[[str], None]) -> None:
        self._side, self._say = side, say
        self._counts = {BACKWARD: 0, STEP: 0}
        self._said: set[str] = set()
        self._samples: tuple[int, ...] = ()
        self._stream = 0
        self._model = ""
        self._broken_gradient = False
        self._depth = 0

    def backward(self, roots: Any) -> None:
        """Meet the others before a backward from `roots`."""
        tensors = [roots] if isinstance(roots, Tensor) else list(roots)
        self._meet(
            BACKWARD,
            broken=any(_is_broken(tensor) for tensor in tensors),
            samples=self._samples,
            stream=self._stream,
            model=self._model,
        )
        self._samples, self._stream, self._model = (), 0, ""

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Look at the gradients that an optimizer is about to use."""
        self._broken_gradient = any(
            one.grad is not None and not one.grad.is_sparse and _is_broken(one.grad)
            for one in parameters_of(optimizer)
        )

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Meet the others after the step of an optimizer."""
        if self._side.size == 1:
            return
        whole = [one for one in parameters_of(optimizer) if type(one) in (nn.Parameter, Tensor)]
        self._meet(
            STEP,
            broken=self._broken_gradient,
            weights=tuple(int(fingerprint(one)) for one in whole),
            shapes=tuple(tuple(one.shape) for one in whole),
        )

    def call(self, forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module; where the script itself does, note what it is trained on and whether it draws."""
        first = next(module.parameters(), None) if self._depth == 0 else None
        if first is None or not (module.training and torch.is_grad_enabled()):
            return forward(module, *args, **kwargs)
        self._depth += 1
        try:
            before = random_digest(first.device)
            self._samples += rows_of([*args, *kwargs.values()])
            self._model = self._model or f"{type(module).__name__} at {line_here()}"
            result = forward(module, *args, **kwargs)
            if not self._stream and random_digest(first.device) != before:
                self._stream = before
        finally:
            self._depth -= 1
        return result

    def _meet(self, kind: str, **told: Any) -> None:
        self._counts[kind] += 1
        if self._side.size == 1:
            return
        moment = Moment(kind=kind, number=self._counts[kind], line=line_here(), **told)
        moments = self._side.gather(moment)
        check(moments)
        for line in suspicions(moments):
            topic = line.partition(":")[0]
            if topic not in self._said and self._side.rank == 0:
                self._say(line.removeprefix(f"{topic}: "))
            self._said.add(topic)


@contextmanager
def sanitizing(*, native: bool) -> Iterator[None]:
    """Within, the ranks of the script that this process runs are compared.

    Args:
        native: whether the ranks are the script's own; copies of a serial one have the same samples and
            random numbers.
    """
    side = Side()
    sanitizer = Sanitizer(side, _tell)
    with ExitStack() as stack:
        stack.enter_context(beside(side))
        for hook in (
            register_optimizer_step_pre_hook(sanitizer.before_step),
            register_optimizer_step_post_hook(sanitizer.after_step),
        ):
            stack.callback(hook.remove)
        stack.enter_context(patch.object(torch.autograd, "backward", _met_before(sanitizer)))
        if native:
            stack.enter_context(patch.object(nn.Module, "__call__", _noted(sanitizer)))
        yield


def _met_before(sanitizer: Sanitizer) -> Callable[..., None]:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        sanitizer.backward(tensors)
        original(tensors, *args, **kwargs)

    return backward


def _noted(sanitizer: Sanitizer) -> Callable[..., Any]:
    original: Callable[..., Any] = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return sanitizer.call(original, module, args, kwargs)

    return call


def _is_broken(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor.detach()).all())


def _tell(line: str) -> None:
    sys.stderr.write(f"samestep: warning: {line}\n")
