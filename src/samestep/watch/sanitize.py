"""Compares the ranks of a script at each backward and each step of an optimizer.

Nothing of the script is changed: its ranks meet once more, over a group of their own. What makes a run
meaningless ends it; what is probably not meant is said once.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samestep.replicas.fingerprint import checksum
from samestep.watch.alike import Moment, check, suspicions
from samestep.watch.events import Listener, parameters_of, subscribed
from samestep.watch.inputs import random_digest, rows_of
from samestep.watch.side import Side, beside
from samestep.watch.where import line_here

BACKWARD, STEP = "backward", "optimizer step"


class Sanitizer(Listener):
    """Compares this rank with the others.

    Args:
        side: the ranks.
        native: whether the ranks are the script's own; copies of a serial one have the same samples and
            random numbers.
        say: told what is probably not meant, on rank 0.
    """

    def __init__(self, side: Side, *, native: bool, say: Callable[[str], None]) -> None:
        self._side, self._native, self._say = side, native, say
        self._counts = {BACKWARD: 0, STEP: 0}
        self._said: set[str] = set()
        self._samples: tuple[int, ...] = ()
        self._stream = 0
        self._model = ""
        self._broken_gradient = False

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """Meet the others before a backward."""
        self._meet(
            BACKWARD,
            broken=any(_is_broken(one) for one in losses),
            samples=self._samples,
            stream=self._stream,
            model=self._model,
        )
        self._samples, self._stream, self._model = (), 0, ""
        yield

    def before_step(self, optimizer: Optimizer) -> None:
        """Look at the gradients that an optimizer is about to use."""
        self._broken_gradient = any(
            one.grad is not None and not one.grad.is_sparse and _is_broken(one.grad)
            for one in parameters_of(optimizer)
        )

    def after_step(self, optimizer: Optimizer) -> None:
        """Meet the others after the step of an optimizer."""
        if self._side.size == 1:
            return
        whole = [one for one in parameters_of(optimizer) if type(one) in (nn.Parameter, Tensor)]
        self._meet(
            STEP,
            broken=self._broken_gradient,
            weights=tuple(int(checksum(one)) for one in whole),
            shapes=tuple(tuple(one.shape) for one in whole),
        )

    @contextmanager
    def call(self, module: nn.Module, given: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """Note what a module is trained on, and whether it draws."""
        if not (self._native and is_training):
            yield
            return
        device = next(module.parameters()).device
        before = random_digest(device)
        self._samples += rows_of(given)
        self._model = self._model or f"{type(module).__name__} at {line_here()}"
        yield
        if not self._stream and random_digest(device) != before:
            self._stream = before

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
    with beside(side), subscribed(Sanitizer(side, native=native, say=_tell)):
        yield


def _is_broken(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor.detach()).all())


def _tell(line: str) -> None:
    sys.stderr.write(f"samestep: warning: {line}\n")
