"""Compares the ranks of a script at each backward and each optimizer step.

The script itself does not change: its ranks communicate once more, over a separate group. Differences that
invalidate the run raise OutOfStep; probable mistakes are reported once.
"""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.optim import Optimizer

from samestep.base.errors import OutOfStep
from samestep.base.units import format_ranks
from samestep.hooks import declarations, module_parts
from samestep.hooks.registry import attached_all, wrapping
from samestep.hooks.training_events import Listener, parameters_of, subscribed
from samestep.parallel.gradients.agreement import checksum, drift_message
from samestep.parallel.gradients.synchronizer import SYNCHRONIZATIONS, GradientSynchronizer
from samestep.ranks.hang.script_position import current_line

_IN_FSDP = "_fsdp_flattened"
"""The attribute of torch's parameters that are shards, or views of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPoint:
    """Values of one rank at the start of a backward, or after an optimizer step."""

    kind: str  # ``backward`` or ``optimizer step``
    number: int  # number of the backward or step, from 1
    line: str  # line of the script
    not_finite: bool = False  # whether the loss, or a gradient, is not finite
    weights: tuple[int, ...] = ()  # checksums of the parameters after a step
    shapes: tuple[tuple[int, ...], ...] = ()  # shapes of the parameters
    # hashes of the samples of training calls since the last backward
    samples: tuple[int, ...] = field(default=())
    stream: int = 0  # digest of the random state before the first of these calls that drew; 0 if none did
    model: str = ""  # the model that was called, and the line of the call

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.kind} {self.number}"


class Suspicion(NamedTuple):
    """A probable mistake in a script."""

    code: Literal["same-samples", "same-random-stream", "different-lines"]
    text: str


def check(points: Sequence[SyncPoint]) -> None:
    """Raise OutOfStep, on all ranks, for differences between their values that invalidate the run."""
    _check_place(points)
    _check_finite(points)
    _check_weights(points)


def suspicions(points: Sequence[SyncPoint]) -> list[Suspicion]:
    """Return the probable mistakes that the values of all ranks show."""
    mistakes = []
    first = points[0]
    equal = _equal_ranks(points, lambda compared: tuple(sorted(compared.samples)))
    if equal:
        point = points[equal[0]]
        text = (
            f"{format_ranks(equal)} train on the same {len(point.samples)} samples in {first.name} "
            f"({point.model}). Give each rank its shard (DistributedSampler, samestep.shard)."
        )
        mistakes.append(Suspicion("same-samples", text))
    same = [rank for rank in _equal_ranks(points, lambda compared: compared.stream) if rank not in equal]
    if len(same) > 1:
        text = (
            f"{format_ranks(same)} draw the same random numbers for different samples in {first.name} "
            f"({points[same[0]].model}), so dropout masks repeat. Seed with seed + rank after creating the "
            "model."
        )
        mistakes.append(Suspicion("same-random-stream", text))
    if len({compared.line for compared in points}) > 1:
        where = ", ".join(f"rank {rank} at {point.line}" for rank, point in enumerate(points))
        text = f"the ranks run {first.name} in different lines of the script: {where}."
        mistakes.append(Suspicion("different-lines", text))
    return mistakes


def _check_place(points: Sequence[SyncPoint]) -> None:
    places = [(point.kind, point.number) for point in points]
    if len(set(places)) > 1:
        differing = next(rank for rank, place in enumerate(places) if place != places[0])
        raise OutOfStep(
            f"the ranks are out of step: rank 0 is at {_position(points[0])}, rank {differing} at "
            f"{_position(points[differing])}. All ranks must run the same steps in the same order."
        )


def _position(point: SyncPoint) -> str:
    return f"{point.name} ({point.line})"


def _check_finite(points: Sequence[SyncPoint]) -> None:
    bad = [rank for rank, point in enumerate(points) if point.not_finite]
    if bad and len(bad) < len(points):
        subject = "the loss is" if points[0].kind == "backward" else "a gradient is"
        raise OutOfStep(
            f"{subject} NaN or infinite on {format_ranks(bad)} of {len(points)} only, in {points[0].name}. "
            "Check the samples of that rank: the average makes the step of all ranks invalid."
        )


def _check_weights(points: Sequence[SyncPoint]) -> None:
    if len({point.shapes for point in points}) > 1:  # sharded parameters
        return
    for index, shape in enumerate(points[0].shapes):
        checksums = [point.weights[index] for point in points]
        if len(set(checksums)) > 1:
            drift = drift_message(f"parameter {index} {list(shape)}", checksums)
            raise OutOfStep(f"{drift} Detected after {points[0].name}.")


def _equal_ranks(points: Sequence[SyncPoint], key: Callable[[SyncPoint], object]) -> list[int]:
    """Return the first ranks with an equal value that is not empty; empty if fewer than two."""
    values = [key(point) for point in points]
    for value in values:
        ranks = [rank for rank, compared in enumerate(values) if compared == value]
        if value and len(ranks) > 1:
            return ranks
    return []


T = TypeVar("T")
BACKWARD, STEP = "backward", "optimizer step"
NAME = "samestep --sanitize"
_ROWS = 1024  # maximum samples of a call that are hashed


class SideGroup:
    """A second group with the ranks of the default group."""

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def size(self) -> int:
        """Number of ranks in the group; 1 while there is no group."""
        return int(c10d.get_world_size(self._group)) if self._is_up else 1

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return int(c10d.get_rank(self._group)) if self._is_up else 0

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        c10d.all_gather_object(values, value, group=self._group)
        return values

    def open(self) -> None:
        """Create the group; all ranks call this after creating the default group."""
        self._group = c10d.new_group(backend="gloo", group_desc=NAME)

    def close(self) -> None:
        """Destroy the group."""
        if self._is_up:
            with suppress(Exception):  # another rank may have ended
                c10d.destroy_process_group(self._group)
        self._group = None

    @property
    def _is_up(self) -> bool:
        return self._group is not None and bool(c10d.is_initialized())


class Sanitizer(Listener):
    """Compares this rank with the others.

    Args:
        side: the group of all ranks.
        warn: called with each probable mistake, on rank 0.
    """

    def __init__(self, side: SideGroup, *, warn: Callable[[str], None]) -> None:
        self._side, self._warn = side, warn
        self._counts = {BACKWARD: 0, STEP: 0}
        self._reported: set[str] = set()
        self._samples: tuple[int, ...] = ()
        self._stream = 0
        self._model = ""
        self._bad_gradient = False
        self._joins = 0
        """Number of `Join` contexts around the calling code, in which ranks have unequal numbers of steps."""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Compare the ranks for the duration of a block, but not inside of `Join`."""

        def begin(original: Callable[[Any], Any], join: Any) -> Any:
            self._joins += 1
            return original(join)

        def end(original: Callable[..., Any], join: Any, *error: Any) -> Any:
            try:
                return original(join, *error)
            finally:
                self._joins -= 1

        hooks = {declarations.JOIN_BEGUN: wrapping(begin), declarations.JOIN_ENDED: wrapping(end)}
        with attached_all(hooks), subscribed(self), SYNCHRONIZATIONS.subscribed(self._synchronize):
            yield

    def _synchronize(self, synchronizer: GradientSynchronizer) -> AbstractContextManager[None]:
        """Compare a rank without samples with the others before their backward."""
        if not synchronizer.has_backward:
            self._compare(BACKWARD)
        return nullcontext()

    @contextmanager
    def backward(self, losses: Sequence[Tensor]) -> Iterator[None]:
        """Compare the ranks before a backward."""
        self._compare(
            BACKWARD,
            not_finite=any(_is_not_finite(loss) for loss in losses),
            samples=self._samples,
            stream=self._stream,
            model=self._model,
        )
        self._samples, self._stream, self._model = (), 0, ""
        yield

    def before_step(self, optimizer: Optimizer) -> None:
        """Check the gradients that an optimizer is about to use."""
        self._bad_gradient = any(
            parameter.grad is not None and not parameter.grad.is_sparse and _is_not_finite(parameter.grad)
            for parameter in parameters_of(optimizer)
        )

    def after_step(self, optimizer: Optimizer) -> None:
        """Compare the ranks after the step of an optimizer."""
        if self._side.size == 1:
            return
        plain = [
            parameter
            for parameter in parameters_of(optimizer)
            if type(parameter) in (nn.Parameter, Tensor) and not hasattr(parameter, _IN_FSDP)
        ]
        self._compare(
            STEP,
            not_finite=self._bad_gradient,
            weights=tuple(int(checksum(parameter)) for parameter in plain),
            shapes=tuple(tuple(parameter.shape) for parameter in plain),
        )

    @contextmanager
    def call(self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool) -> Iterator[None]:
        """Record the samples of a training call, and whether it draws random numbers."""
        if not is_training:
            yield
            return
        device = next(module_parts.parameters(module)).device
        before = _random_digest(device)
        self._samples += _rows_of(inputs)
        self._model = self._model or f"{type(module).__name__} at {current_line()}"
        yield
        if not self._stream and _random_digest(device) != before:
            self._stream = before

    def _compare(self, kind: str, **values: Any) -> None:
        if self._joins:
            return
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
def sanitizing() -> Iterator[None]:
    """Compare the ranks of the script that this process runs, for the duration of a block."""
    side = SideGroup()
    sanitizer = Sanitizer(side, warn=_print_warning)
    with _opened_with_default(side), sanitizer.attached():
        yield


@contextmanager
def _opened_with_default(side: SideGroup) -> Iterator[None]:
    """Open `side` when the default group is created inside the block, and close it at the end."""
    if c10d.is_initialized():
        side.open()

    def begin(began: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        began(*args, **kwargs)
        side.open()

    hooks = {declarations.SIDE_GROUP: wrapping(begin), declarations.SIDE_GROUP_PUBLIC: wrapping(begin)}
    with attached_all(hooks):
        try:
            yield
        finally:
            side.close()


def _rows_of(values: Iterable[Any]) -> tuple[int, ...]:
    """Return a hash of each sample in the first tensor among `values`; empty without a tensor."""
    for value in values:
        if isinstance(value, Tensor) and _has_rows(value):
            return tuple(int(checksum(row)) for row in value.detach()[:_ROWS])
    return ()


def _has_rows(value: Tensor) -> bool:
    is_plain = value.layout is torch.strided and not (value.is_nested or value.is_quantized)
    return is_plain and value.dim() > 0 and value.numel() > 0


def _random_digest(device: torch.device) -> int:
    """Return a digest of the random state that a call on `device` draws from."""
    state = torch.get_rng_state()
    if device.type == "cuda":
        state = torch.cat([state, torch.cuda.get_rng_state(device)])
    return zlib.crc32(state.numpy().tobytes()) or 1


def _is_not_finite(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor.detach()).all())


def _print_warning(text: str) -> None:
    sys.stderr.write(f"samestep: warning: {text}\n")
