"""Compares the ranks of a script at each backward and each optimizer step.

The script itself does not change: its ranks communicate once more, over a separate group. Differences that
invalidate the run raise OutOfStep; probable mistakes are reported once.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samestep.hooks.training_events import Listener, parameters_of, subscribed
from samestep.observe.hang.script_position import current_line
from samestep.observe.sanitize.input_digests import random_digest, rows_of
from samestep.observe.sanitize.invariants import SyncPoint, check, suspicions
from samestep.observe.sanitize.side_group import SideGroup, opened_with_default
from samestep.parallel.gradients.weight_checksum import checksum

BACKWARD, STEP = "backward", "optimizer step"


class Sanitizer(Listener):
    """Compares this rank with the others.

    Args:
        side: the group of all ranks.
        native: whether the script is distributed itself; the ranks of a replicated serial script have the
            same samples and random numbers.
        warn: called with each probable mistake, on rank 0.
    """

    def __init__(self, side: SideGroup, *, native: bool, warn: Callable[[str], None]) -> None:
        self._side, self._native, self._warn = side, native, warn
        self._counts = {BACKWARD: 0, STEP: 0}
        self._reported: set[str] = set()
        self._samples: tuple[int, ...] = ()
        self._stream = 0
        self._model = ""
        self._bad_gradient = False

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """Compare the ranks before a backward."""
        self._compare(
            BACKWARD,
            not_finite=any(_is_not_finite(one) for one in losses),
            samples=self._samples,
            stream=self._stream,
            model=self._model,
        )
        self._samples, self._stream, self._model = (), 0, ""
        yield

    def before_step(self, optimizer: Optimizer) -> None:
        """Check the gradients that an optimizer is about to use."""
        self._bad_gradient = any(
            one.grad is not None and not one.grad.is_sparse and _is_not_finite(one.grad)
            for one in parameters_of(optimizer)
        )

    def after_step(self, optimizer: Optimizer) -> None:
        """Compare the ranks after the step of an optimizer."""
        if self._side.size == 1:
            return
        plain = [one for one in parameters_of(optimizer) if type(one) in (nn.Parameter, Tensor)]
        self._compare(
            STEP,
            not_finite=self._bad_gradient,
            weights=tuple(int(checksum(one)) for one in plain),
            shapes=tuple(tuple(one.shape) for one in plain),
        )

    @contextmanager
    def call(self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """Record the samples of a training call, and whether it draws random numbers."""
        if not (self._native and is_training):
            yield
            return
        device = next(module.parameters()).device
        before = random_digest(device)
        self._samples += rows_of(inputs)
        self._model = self._model or f"{type(module).__name__} at {current_line()}"
        yield
        if not self._stream and random_digest(device) != before:
            self._stream = before

    def _compare(self, kind: str, **values: Any) -> None:
        self._counts[kind] += 1
        if self._side.size == 1:
            return
        points = self._side.gather(
            SyncPoint(kind=kind, number=self._counts[kind], line=current_line(), **values)
        )
        check(points)
        for code, text in suspicions(points):
            if code not in self._reported and self._side.rank == 0:
                self._warn(text)
            self._reported.add(code)


@contextmanager
def sanitizing(*, native: bool) -> Iterator[None]:
    """Compare the ranks of the script that this process runs, for the duration of a block.

    Args:
        native: see `Sanitizer`.
    """
    side = SideGroup()
    with opened_with_default(side), subscribed(Sanitizer(side, native=native, warn=_print_warning)):
        yield


def _is_not_finite(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor.detach()).all())


def _print_warning(text: str) -> None:
    sys.stderr.write(f"samestep: warning: {text}\n")
