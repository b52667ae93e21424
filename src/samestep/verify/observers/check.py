"""The interfaces of observers and of checks, each of which finds one kind of mistake, and what checks share.

Checks compare tensors over time without a copy of them. A tensor whose memory cannot be read, as of a
library's subclass, is unequal to itself and not zero: then no check has a reason for a note.
"""

import multiprocessing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, Make, attached_all, wrapping
from samestep.hooks.tensor_tree import leaves
from samestep.hooks.training_events import Listener, subscribed
from samestep.verify.trace import Note, Place


def with_forked_workers(original: Callable[[Any], Any], loader: Any) -> Any:
    """Begin a pass over a loader whose worker processes are forked, so that they have the hooks of this one.

    Since Python 3.14 those of a loader that does not say how they start are not.
    """
    usual = loader.num_workers > 0 and loader.multiprocessing_context is None
    if not usual or multiprocessing.get_start_method() == "fork":
        return original(loader)
    loader.multiprocessing_context = "fork"
    try:
        return original(loader)
    finally:
        loader.multiprocessing_context = None


class Observer(Listener):
    """Receives the events of a script on one rank and returns notes at its end; it changes nothing.

    An observer is precise before it is exhaustive: it returns a note only for what is certainly a mistake.
    """

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Observe the script for the duration of a block."""
        with subscribed(self):
            yield

    def notes(self) -> Iterable[Note]:
        """Return the notes, at the end of the script or after its last step."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A top-level forward of a module with parameters."""

    module: nn.Module
    number: int  # number of the call, over all modules
    is_training: bool  # whether the module is in training mode
    has_grad: bool  # whether gradients are enabled


class Check:
    """Receives the events of a script on one rank; each method here does nothing.

    A check changes nothing. It draws no random number, and keeps no tensor that the script may free.
    """

    def hooks(self) -> Mapping[Hook, Make]:
        """Return the hooks that this check needs besides the events."""
        return {}

    def made(self, optimizer: Optimizer) -> None:
        """Receive an optimizer that the script has made."""

    def called(self, call: Call, inputs: Sequence[Any]) -> None:
        """Receive that a top-level forward begins, and its arguments."""

    def ended(self, call: Call) -> None:
        """Receive that a top-level forward has ended, also by an error."""

    def trained(self, call: Call) -> None:
        """Receive that a gradient has reached the outputs of a call."""

    def before_backward(self, losses: Sequence[Tensor]) -> None:
        """Receive that a top-level backward begins."""

    def after_backward(self) -> None:
        """Receive that a top-level backward has ended without an error."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Receive that an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Receive that an optimizer has stepped."""

    def notes(self) -> Iterable[Note]:
        """Return the notes; the last step that began may not have ended."""
        raise NotImplementedError


class Checks(Observer):
    """Runs several checks with one subscription: each adds frames to the stack of every nested forward."""

    def __init__(self, kinds: Iterable[Callable[[], Check]]) -> None:
        self._checks = [kind() for kind in kinds]
        self._calls = 0
        self._call: Call | None = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """See `Observer.attached`."""
        with ExitStack() as stack:
            stack.enter_context(super().attached())
            stack.enter_context(attached_all({declarations.NEW_OPTIMIZER: after(self._made)}))
            for check in self._checks:
                stack.enter_context(attached_all(check.hooks()))
            yield

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        for check in self._checks:
            yield from check.notes()

    def _made(self, optimizer: Optimizer) -> None:
        for check in self._checks:
            check.made(optimizer)

    @contextmanager
    def call(self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """See `Listener.call`."""
        del is_training
        self._calls += 1
        call = self._call = Call(module, self._calls, module.training, torch.is_grad_enabled())
        for check in self._checks:
            check.called(call, inputs)
        try:
            yield
        finally:
            for check in self._checks:
                check.ended(call)

    def returned(self, outputs: Any) -> None:
        """See `Listener.returned`; the first gradient of an output shows that a backward follows."""
        call, self._call = self._call, None
        if call is not None and call.has_grad:
            on_first_gradient(outputs, lambda: self._trained(call))

    def _trained(self, call: Call) -> None:
        for check in self._checks:
            check.trained(call)

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """See `Listener.backward`."""
        for check in self._checks:
            check.before_backward(losses)
        yield
        for check in self._checks:
            check.after_backward()

    def before_step(self, optimizer: Optimizer) -> None:
        """See `Listener.before_step`."""
        for check in self._checks:
            check.before_step(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """See `Listener.after_step`."""
        for check in self._checks:
            check.after_step(optimizer)


def after(receive: Callable[[Any], None]) -> Make:
    """Return a replacement of a method that calls `receive` with the object after the original."""

    def run(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(owner, *args, **kwargs)
        receive(owner)
        return result

    return wrapping(run)


def on_first_gradient(outputs: Any, act: Callable[[], None]) -> None:
    """Call `act` once, when a gradient reaches an output of a call."""
    hooks: list[RemovableHandle] = []

    def on_gradient(_: Tensor) -> None:
        if hooks:
            while hooks:
                hooks.pop().remove()
            act()

    for _, tensor in leaves(outputs):
        if tensor.requires_grad:
            hooks.append(tensor.register_hook(on_gradient))  # type: ignore[no-untyped-call]


def in_words(place: Place | None) -> str:
    """Return " (file:line)"; an empty string for an unknown line."""
    return "" if place is None else f" ({place[0].rpartition('/')[2]}:{place[1]})"


_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)
_unequal = count(1)


def checksum(tensor: Tensor) -> int:
    """Return a checksum of a tensor's values."""
    try:
        memory = _plain(tensor).cpu().contiguous().reshape(-1).view(torch.uint8)
        return zlib.crc32(memory.numpy().tobytes())
    except _UNREADABLE:
        return -next(_unequal)


def version(tensor: Tensor) -> tuple[int, int]:
    """Return the memory of a tensor, and how often it was changed; a value cannot change with neither."""
    try:
        plain = _plain(tensor)
        return plain.data_ptr(), plain._version  # noqa: SLF001 - there is no public spelling
    except _UNREADABLE:
        return 0, -next(_unequal)


def is_zero(tensor: Tensor | None) -> bool:
    """Return whether a tensor is missing, or zero everywhere."""
    if tensor is None:
        return True
    try:
        return not bool(_plain(tensor).count_nonzero())
    except _UNREADABLE:
        return False


def overflows(optimizer: Optimizer) -> bool:
    """Return whether a fused optimizer, which is called also for a step that it skips, skips this one."""
    return not is_zero(getattr(optimizer, "found_inf", None))


def magnitude(tensor: Tensor | None) -> float:
    """Return the largest magnitude of a tensor's values; 0 for a missing or empty tensor."""
    if tensor is None:
        return 0.0
    try:
        values = _plain(tensor)
        return float(values.abs().max()) if values.numel() else 0.0
    except _UNREADABLE:
        return 0.0


def _plain(tensor: Tensor) -> Tensor:
    """Return the stored values of a sparse tensor, and this rank's part of a `DTensor`."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    # Also of a tensor whose indices repeat.
    return (local._values() if local.is_sparse else local).detach()  # noqa: SLF001
