"""Defines the training step and its batches: data-parallel, or by logical shards under ``--exact``.

The result of a step does not depend on the number of workers. The model can be compiled.
"""

import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.observe.step_reader import LoopClock
from samestep.parallel.exact.identity import deterministic
from samestep.parallel.exact.logical_shards import Exact
from samestep.parallel.gradients.replicate import Replicas, replicate
from samestep.parallel.sharding import Position, share
from samestep.ranks.world.protocol import World
from samestep.training.data.image_set import Images
from samestep.training.data.loader import Batch, ImageLoader, LoaderOptions, loading_processes
from samestep.training.loop.learner import Learner
from samestep.training.settings import Settings


def compiled(model: nn.Module, settings: Settings) -> Callable[[Tensor], Tensor]:
    """Return the function that computes scores in training: `model` itself, or its compiled form.

    Both share weights and buffers. Save and evaluate `model`, because the compiled form's keys begin with
    ``_orig_mod.``. The compiler runs at the first call and again for a last batch of another size. With
    `settings.exact` it runs at each new size, because dynamic-shape code computes other bits. An empty local
    batch goes through `model`, because torch's compiler fails on it (torch 2.13).

    Raises:
        UsageError: this machine cannot compile the model.
    """
    if not settings.compile:
        return model
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    _check_compilers(device, env.snapshot())
    try:
        fast: Callable[[Tensor], Tensor] = torch.compile(
            model, dynamic=None if settings.exact is None else False
        )
    except RuntimeError as error:  # a Python that is too new for this torch
        raise UsageError(
            f"--compile does not work with Python {sys.version.split()[0]} and torch {torch.__version__}: "
            f"{error}. Omit --compile."
        ) from None

    def forward(images: Tensor) -> Tensor:
        scores: Tensor = fast(images) if len(images) else model(images)
        return scores

    return forward


def _check_compilers(device: torch.device, environment: env.Environment) -> None:
    """Check that the programs torch's compiler runs exist: it fails only in the first step."""
    if device.type == "cpu":
        _check_program(environment, "CXX", ("clang++" if sys.platform == "darwin" else "g++",))
    elif device.type == "cuda":
        if find_spec("triton") is None:
            raise UsageError(
                "--compile needs Triton to build GPU kernels, and it is not installed. "
                "Install it (pip install triton), or omit --compile."
            )
        _check_program(environment, "CC", ("gcc", "clang"))


def _check_program(environment: env.Environment, variable: str, usual: tuple[str, ...]) -> None:
    """Check that the compiler named by `variable`, or else one of the `usual` ones, is on PATH."""
    named = environment.get(variable)
    programs = usual if named is None else (named,)
    if not any(shutil.which(program) for program in programs):
        wanted = " or ".join(usual) if named is None else f"{variable}={named!r}"
        raise UsageError(
            f"--compile runs a C++ or C compiler, and {wanted} is not found. "
            f"Install one, set {variable} to it, or omit --compile."
        )


@dataclass(slots=True, kw_only=True)
class Step(ABC):
    """One step of the optimizer and of the schedule per global batch, in one or more micro-batches.

    After the last backward of a step every rank has the gradients of the global batch. Clipping and the
    overflow check come after it, so their results are equal on all ranks. Nothing here waits for a device.
    """

    learner: Learner
    settings: Settings
    forward: Callable[[Tensor], Tensor]  # the model or its compiled form
    clock: LoopClock

    @abstractmethod
    def __call__(self, batch: Any) -> Tensor | None:
        """Train on this rank's part of a (micro-)batch.

        Returns:
            after the last micro-batch of a step this rank's part of its loss, times the number of ranks,
            detached; None after the others.
        """

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.learner.optimizer.param_groups[0]["lr"])

    def _backward(self, batch: Batch, weight: float) -> Tensor:
        """Accumulate the gradients of a batch; return its weighted mean loss, detached."""
        images = batch.images
        if self.settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.clock.mark("data")
        with self.learner.precision.autocast():
            scores = self.forward(images)
        smoothing = self.settings.label_smoothing
        loss = share_of_loss(scores, batch.labels, weight, label_smoothing=smoothing)
        self.clock.mark("forward")
        self.learner.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _update(self) -> None:
        learner, scaler = self.learner, self.learner.precision.scaler
        if self.settings.clip_norm is not None:
            scaler.unscale_(learner.optimizer)
            nn.utils.clip_grad_norm_(learner.model.parameters(), self.settings.clip_norm)
        scaler.step(learner.optimizer)
        scaler.update()
        if learner.schedule is not None:
            learner.schedule.step()
        learner.optimizer.zero_grad()
        if learner.average is not None:
            learner.average.update()
        self.clock.mark("optimizer")
        self.clock.step_done()


@dataclass(slots=True, kw_only=True)
class ReplicatedStep(Step):
    """A data-parallel step: `replicas` averages the gradients during or after its last backward."""

    replicas: Replicas
    _loss: Tensor | None = field(default=None, init=False)
    _after_gradients: str = field(init=False)
    """The phase that ends with averaged gradients: "exposed_sync" if the end of backward is observable."""

    def __post_init__(self) -> None:
        observable = self.replicas.when_exchange_begins(lambda: self.clock.mark("backward"))
        self._after_gradients = "exposed_sync" if observable else "backward"

    def __call__(self, batch: Batch) -> Tensor | None:
        """See `Step.__call__`."""
        with nullcontext() if batch.last_of_step else self.replicas.accumulate():
            loss = self._backward(batch, batch.weight)
        self.clock.mark(self._after_gradients if batch.last_of_step else "backward")
        self._loss = loss if self._loss is None else self._loss + loss
        if not batch.last_of_step:
            return None
        self._update()
        loss, self._loss = self._loss, None
        return loss


def share_of_loss(scores: Tensor, labels: Tensor, weight: float, *, label_smoothing: float = 0.0) -> Tensor:
    """Return this rank's part of the mean cross-entropy over the global batch, times the number of ranks.

    The ranks' gradients are averaged, so uneven local batches are weighted here, before any accumulation.
    An empty local batch has passed through the model as well, because global batch norm needs all ranks;
    the sum of its scores is 0, whereas 0 times a mean over nothing is NaN.

    Args:
        scores: (local, classes); converted to float32 or wider.
        labels: (local,), int64.
        weight: local * N / global; see `Batch.weight`.
        label_smoothing: weight of the uniform distribution in the targets. Source: Szegedy et al.,
            "Rethinking the Inception architecture for computer vision", CVPR 2016.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if not len(labels):
        empty: Tensor = scores.sum()
        return empty
    loss = F.cross_entropy(scores, labels, label_smoothing=label_smoothing)
    return loss if weight == 1.0 else loss * weight


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """This rank's logical shards of one (micro-)batch."""

    batches: Sequence[Batch]  # one per shard of this rank, in order

    @property
    def global_count(self) -> int:
        """Samples over all ranks."""
        return self.batches[0].global_count

    @property
    def local_count(self) -> int:
        """Samples of this rank."""
        return sum(batch.local_count for batch in self.batches)

    @property
    def after(self) -> Position:
        """The position in the data after the step."""
        return self.batches[0].after

    @property
    def last_of_step(self) -> bool:
        """Whether it is the last (micro-)batch of its step."""
        return self.batches[0].last_of_step


LocalBatch: TypeAlias = Batch | ShardBatch
"""This rank's part of one (micro-)batch."""


class LocalBatches(Protocol):
    """Epochs of this rank's parts of global batches."""

    def __len__(self) -> int:
        """Return the steps per epoch, the same on every rank."""

    def epoch(self, position: Position | None = None) -> Iterator[LocalBatch]:
        """Yield the local batches from `position` to the end of its epoch."""


class ShardedBatches:
    """Epochs of this rank's logical shards, of `count`, each drawn as the local batch of one rank."""

    def __init__(
        self, images: Images, options: LoaderOptions, count: int, *, world: World, workers: int | None
    ) -> None:
        indices = share(count, world.place.rank, world.place.size)
        processes = (loading_processes(world.place, world.device) if workers is None else workers) // len(
            indices
        )
        self._loaders = [
            ImageLoader(
                images, options, place=Place(rank=index, size=count), device=world.device, workers=processes
            )
            for index in indices
        ]

    def __len__(self) -> int:
        """Return the steps per epoch."""
        return len(self._loaders[0])

    def epoch(self, position: Position | None = None) -> Iterator[ShardBatch]:
        """Yield the (micro-)batches from `position` to the end of its epoch."""
        for batches in zip(*(loader.epoch(position) for loader in self._loaders), strict=True):
            yield ShardBatch(batches)


def training_batches(
    images: Images, options: LoaderOptions, settings: Settings, world: World, *, workers: int | None
) -> LocalBatches:
    """Return this rank's local batches, or with ``--exact`` the batches of its logical shards.

    Raises:
        UsageError: a full batch has fewer samples than ranks or shards.
    """
    if settings.exact is None:
        return ImageLoader(images, options, place=world.place, device=world.device, workers=workers)
    return ShardedBatches(images, options, settings.exact, world=world, workers=workers)


@contextmanager
def synchronized_step(
    learner: Learner, settings: Settings, world: World, *, clock: LoopClock, number: int
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Synchronize gradients and batch norm of the ranks' models within the block; called by all ranks.

    `number` is the index of the next step of the whole run.

    Yields:
        the step, and a function that compares the ranks' weights.

    Raises:
        OutOfStep: the ranks' models differ, or ``--exact`` is not possible on these ranks.
    """
    forward = compiled(learner.model, settings)
    common: dict[str, Any] = {"learner": learner, "settings": settings, "forward": forward, "clock": clock}
    if settings.exact is not None:
        # The command has set the threads, to 1 or to those of ``--threads``.
        exact = Exact(learner.model, shards=settings.exact, seed=settings.seed, threads=None, world=world)
        with deterministic(world.device):
            yield ExactStep(exact=exact, number=number, **common), exact.check
        return
    compress = None if settings.compress == "none" else settings.compress
    with replicate(
        learner.model,
        world,
        sync=settings.sync,
        batch_norm=settings.batch_norm or "global",
        compress=compress,
    ) as replicas:
        yield ReplicatedStep(replicas=replicas, **common), replicas.check


@dataclass(slots=True, kw_only=True)
class ExactStep(Step):
    """A step that computes its logical shards one after the other; see `logical_shards`.

    Micro-batches are collected until the last one of the step, because a shard computes all of its
    micro-batches before the next shard starts. Its sums then do not depend on the rank that computes it.
    """

    exact: Exact
    number: int  # index of the next step of the whole run
    _pending: list[ShardBatch] = field(default_factory=list, init=False)

    def __call__(self, batch: ShardBatch) -> Tensor | None:
        """See `Step.__call__`."""
        self._pending.append(batch)
        if not batch.last_of_step:
            return None
        batches, self._pending = self._pending, []
        loss = self._through_shards(batches)
        self._update()
        self.number += 1
        return loss

    def _through_shards(self, pending: Sequence[ShardBatch]) -> Tensor:
        """Add up all gradients; return this rank's part of the loss, times the number of ranks."""
        exact = self.exact
        dtype = torch.promote_types(self.learner.precision.weights, torch.float32)  # of `share_of_loss`
        loss = torch.zeros((), dtype=dtype, device=exact.device)
        with closing(exact.shards(self.number)) as shards:
            for position, _ in enumerate(shards):
                for batch in (micro_batch.batches[position] for micro_batch in pending):
                    if len(batch.labels):
                        loss += self._shard_backward(batch)
                        self.clock.mark("backward")
        self.clock.mark("exposed_sync")
        return loss * exact.num_ranks

    def _shard_backward(self, batch: Batch) -> Tensor:
        """See `Step._backward`; weighted for an average over shards, which the tree reduction sums.

        Raises:
            UsageError: a shard of one sample is too small for batch norm.
        """
        try:
            return self._backward(batch, batch.weight / self.exact.num_shards)
        except ValueError as error:
            if len(batch.labels) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise UsageError(
                f"--exact {self.exact.num_shards}: a logical shard has one of the {batch.global_count} "
                f"samples of step {self.number + 1}, and batch norm cannot normalize one value. Use fewer "
                "shards, or a --batch-size or --subset with which the last step of an epoch has more samples."
            ) from None
