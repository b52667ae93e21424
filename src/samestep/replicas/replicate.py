"""Replicas of one model on all ranks: begun equal, kept equal, and checked."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Literal, TypeAlias
from weakref import WeakKeyDictionary, finalize, ref

from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.collectives.by_algorithm import ByAlgorithm, overlaps_compute
from samestep.collectives.one_host import OneHostWorld, on_one_host
from samestep.replicas.agreement import broadcast_values, refuse_differing, refuse_unfit
from samestep.replicas.batch_norm import (
    batch_norms,
    instance_norms,
    keep_local,
    make_global,
    refuse_own_forward,
    track,
)
from samestep.replicas.bucketed import Bucketed
from samestep.replicas.compress import check_compression
from samestep.replicas.ddp import Ddp
from samestep.replicas.fingerprint import check_alike
from samestep.replicas.flat import Flat
from samestep.replicas.plan import MEBIBYTE
from samestep.replicas.reference import Reference
from samestep.replicas.running import Norm, average_statistics, by_kind
from samestep.replicas.synchroniser import Job, Synchroniser
from samestep.world.current import current
from samestep.world.world import World

BatchNormMode: TypeAlias = Literal["local", "global"]
BATCH_NORM_MODES = ("local", "global")
AUTO = "auto"
"""The synchroniser that suits the world."""

SYNCHRONISERS: dict[str, Callable[[Job], Synchroniser]] = {
    "reference": Reference,
    "bucketed": Bucketed,
    "flat": Flat,
    "ddp": Ddp,
}


def replicate(
    model: nn.Module,
    world: World | None = None,
    *,
    sync: str = AUTO,
    batch_norm: BatchNormMode = "global",
    compress: str | None = None,
    bucket_bytes: int = 25 * MEBIBYTE,
    check_every: int = 100,
) -> "Replicas":
    """Make `model` one of equal replicas on all ranks, and keep it so while it trains.

    Parameters and buffers become those of rank 0. From then on each outermost backward ends with every
    ``p.grad`` averaged over the ranks, so that clipping and the optimizer see the gradients of the global
    batch. The model is not wrapped: the same object, with the same keys in its state dict. Called by all
    ranks; in a world of one it attaches nothing.

    The average has weights 1/N. Where ranks hold different numbers of samples, multiply the loss by
    ``local_count * N / global_count`` before backward. A rank without samples runs the model on an empty
    batch, shape (0, ...), or calls `Replicas.contribute_nothing`.

    Args:
        model: parameters and buffers on this rank's device, trained by ``backward`` and any optimizer.
        world: the ranks; by default those of the job that was joined here. One of `by_algorithm` says which
            all-reduce carries the gradients, under ``bucketed`` and ``reference``.
        sync: how gradients travel: ``bucketed``, ``flat``, ``reference`` or ``ddp``; ``auto`` is ``flat``
            where the ranks share the memory of one host and compute on its processors, else ``bucketed``.
        batch_norm: ``global`` takes batch statistics over the global batch, as the serial script does: each
            training forward of such a layer is then an exchange that all ranks take part in. ``local`` takes
            them over each rank's share, which is faster and another training; the running ones are averaged
            over ranks in the exchange of the gradients.
        compress: how gradients travel smaller than they are: ``fp16`` or ``bf16`` (under ``bucketed`` and
            ``ddp``), or ``powersgd`` (under ``ddp``). They are averaged as they travel, so the result is that
            much less exact; replicas stay equal all the same. Running statistics are not compressed.
        bucket_bytes: how much travels in one message, at most.
        check_every: after how many exchanges the fingerprints are compared (`Replicas.check`); 0 is never.

    Raises:
        UsageError: unknown names, or a model that cannot be replicated (sparse gradients, no shapes yet).
        OutOfStep: the ranks hold different models; names the first difference.
    """
    if sync not in (AUTO, *SYNCHRONISERS):
        raise UsageError(
            f"no synchroniser is called {sync!r}: choose one of {', '.join((AUTO, *SYNCHRONISERS))}"
        )
    if batch_norm not in BATCH_NORM_MODES:
        raise UsageError(
            f"no batch norm is called {batch_norm!r}: choose one of {', '.join(BATCH_NORM_MODES)}"
        )
    check_compression(compress, sync)
    if bucket_bytes < 1 or check_every < 0:
        raise UsageError(
            f"bucket_bytes={bucket_bytes} must be at least 1 and check_every={check_every} at least 0"
        )
    if model in _replicated:
        raise UsageError(
            f"this {type(model).__name__} has been replicated already; detach() the handle it was given first"
        )
    refuse_unfit(model)
    world = current() if world is None else world
    if isinstance(world, ByAlgorithm) and sync in ("flat", "ddp"):
        raise UsageError(
            f"sync={sync!r} exchanges gradients in its own way, and the world says that it is by "
            f"{world.crossovers.describe()}: use sync='bucketed' or 'reference', or another world."
        )
    replicas = Replicas(model, world, check_every=check_every)
    replicas.attach(sync, batch_norm, compress=compress, bucket_bytes=bucket_bytes)
    _replicated[model] = replicas
    return replicas


@contextmanager
def accumulate(*targets: "Replicas | nn.Module") -> Iterator[None]:
    """Let gradients add up on each rank, without an exchange, for the duration of a block.

    For all but the last micro-batch of a step; the first backward after the block exchanges what has
    added up. Forward and backward both belong inside.

    Args:
        targets: what `replicate` returned, or the models it was given.
    """
    with ExitStack() as stack:
        for target in targets:
            stack.enter_context(_handle(target).accumulate())
        yield


class Replicas:
    """The handle of a replicated model; also a context manager that detaches at its end."""

    def __init__(self, model: nn.Module, world: World, *, check_every: int) -> None:
        # Weak, so that a model that is dropped takes its hooks along.
        self._model = ref(model)
        self._world = world
        self._check_every = check_every
        self._num_exchanges = 0
        self._synchroniser: Synchroniser | None = None
        self._undo = ExitStack()

    def attach(
        self, sync: str, batch_norm: BatchNormMode, *, compress: str | None, bucket_bytes: int
    ) -> None:
        """Make the replicas equal and keep them so; called once, by `replicate`."""
        self.sync, self.batch_norm = sync, batch_norm
        model = self._model()
        assert model is not None
        if self._world.place.size == 1:
            return
        carrier = self._settle_sync(compress)
        norms, local = batch_norms(model), batch_norm == "local"
        if not local:
            refuse_own_forward(norms)
        refuse_differing(self._world, model)
        broadcast_values(self._world, model)
        shared: dict[str, Norm] = {**instance_norms(model), **(norms if local else {})}
        tracked = track(shared)
        self._parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._checked_buffers = _buffers_to_check(model, tracked)
        self._statistics = by_kind(tracked.values())
        with ExitStack() as undo:
            redirected = keep_local(shared.values(), tracked.values())
            for restore in redirected + ([] if local else make_global(norms.values(), self._world)):
                undo.callback(restore)
            job = Job(
                world=carrier,
                model=self._model,
                parameters=self._parameters,
                statistics=self._statistics,
                bucket_bytes=bucket_bytes,
                compress=compress,
                may_overlap=self.sync != "ddp"
                and overlaps_compute(carrier)
                and (local or not norms)
                and not _has_sync_batch_norm(model),
                exchanged=self._exchanged,
            )
            self._synchroniser = SYNCHRONISERS[self.sync](job)
            self._synchroniser.attach()
            undo.callback(self._synchroniser.detach)
            undo.callback(finalize(model, self._synchroniser.detach).detach)
            self._undo = undo.pop_all()

    def _settle_sync(self, compress: str | None) -> World:
        """Go through shared memory, where that is asked for or nothing else and it can be.

        Returns:
            the world whose all-reduces carry the gradients.
        """
        world = self._world
        if isinstance(world, ByAlgorithm):
            self._world, self.sync = world.inner, "bucketed" if self.sync == AUTO else self.sync
            return world
        if self.sync == "flat" or (self.sync == AUTO and compress is None):
            self._world = on_one_host(self._world)
        if self.sync == AUTO:
            near = isinstance(self._world, OneHostWorld) and compress is None
            self.sync = "flat" if near else "bucketed"
        return self._world

    @property
    def exposed_s(self) -> float | None:
        """Seconds the last exchange kept backward waiting; 0 in a world of one, None under ``ddp``.

        On an accelerator this is the time of the host, which runs ahead of the device.
        """
        return 0.0 if self._synchroniser is None else self._synchroniser.exposed_s

    def when_exchange_begins(self, call: Callable[[], None]) -> bool:
        """Have `call` called whenever this rank's backward is through and only the exchange is waited for.

        Returns:
            whether that can be seen: not in a world of one, which has no exchange, nor under ``ddp``.
        """
        if self._synchroniser is None or self._synchroniser.exposed_s is None:
            return False
        self._synchroniser.exchange_begins = call
        return True

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """See `samestep.accumulate`."""
        if self._synchroniser is None:
            yield
            return
        with self._synchroniser.accumulate():
            yield

    def contribute_nothing(self) -> None:
        """Take part in the exchange of this step without running the model.

        For a rank that has no samples and cannot run an empty batch either. What has been accumulated on
        this rank is still contributed. With several models, in the order in which they were replicated.

        Raises:
            UsageError: the model has batch norm over the global batch, in which every forward is an exchange.
        """
        model = self._model()
        if self._synchroniser is None or model is None:
            return
        if self.batch_norm == "global" and any(norm.training for norm in batch_norms(model).values()):
            raise UsageError(
                "with batch_norm='global' every forward is an exchange that all ranks take part in: "
                "run the model on an empty batch, of shape (0, ...), in place of contribute_nothing()"
            )
        self._synchroniser.contribute()

    def check(self) -> None:
        """Compare the bits of all parameters and buffers between the ranks, now.

        Buffers that are not saved are left out, and so are running statistics that each rank takes over its
        own share (local batch norm, instance norm); those are averaged first, where forwards without a
        backward have changed them. Costs one pass over the weights: 3 to 4 ns per element and some 50 us
        per tensor on one CPU core, 0.5 ms for the tutorials' ConvNet (measured).

        Raises:
            OutOfStep: the replicas have drifted apart; names ranks and the first tensor.
            UsageError: parameters were added or replaced since `replicate`.
        """
        if self._synchroniser is not None:
            average_statistics(self._world, self._statistics)
        self._compare()

    def _compare(self) -> None:
        model = self._model()
        if self._synchroniser is None or model is None:
            return
        parameters: dict[str, Tensor] = dict(model.named_parameters())
        for name in parameters | self._parameters:
            if parameters.get(name) is not self._parameters.get(name):
                raise UsageError(
                    f"parameter {name} was added, replaced or removed after replicate(), so its gradient is "
                    "not exchanged. Call detach(), change the model on all ranks, and replicate() it again."
                )
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in self._checked_buffers}
        check_alike(self._world, parameters | buffers)

    def detach(self) -> None:
        """Remove everything that `replicate` has attached; the model stays as it is now."""
        self._undo.close()
        self._synchroniser = None
        model = self._model()
        if model is not None and _replicated.get(model) is self:
            del _replicated[model]

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _exchanged(self) -> None:
        self._num_exchanges += 1
        if self._check_every and self._num_exchanges % self._check_every == 0:
            self._compare()


_replicated: "WeakKeyDictionary[nn.Module, Replicas]" = WeakKeyDictionary()


def _handle(target: "Replicas | nn.Module") -> Replicas:
    if isinstance(target, Replicas):
        return target
    if target not in _replicated:
        raise UsageError(f"this {type(target).__name__} has not been replicated: call replicate(model) first")
    return _replicated[target]


def _has_sync_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def _buffers_to_check(model: nn.Module, tracked: Iterable[str]) -> set[str]:
    """Return the names of the buffers that must be equal: saved ones, but for local running statistics."""
    local = {f"{name}.{kind}".lstrip(".") for name in tracked for kind in ("running_mean", "running_var")}
    return set(model.state_dict(keep_vars=True)) - local
