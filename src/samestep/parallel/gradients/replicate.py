"""Trains one model data-parallel: equal at the start, synchronized in each step, and checked."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary, finalize, ref

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from samestep.base.errors import UsageError
from samestep.hooks.module_parts import original_forward, redirect
from samestep.parallel.gradients.agreement import (
    broadcast_values,
    check_equal,
    check_same_structure,
    check_supported,
)
from samestep.parallel.gradients.batch_norm import (
    Norm,
    average_statistics,
    batch_norms,
    by_kind,
    check_torch_forward,
    instance_norms,
    track,
    use_global_statistics,
    use_local_statistics,
)
from samestep.parallel.gradients.bucket import message_bytes
from samestep.parallel.gradients.bucketed import MEBIBYTE, Bucketed, Flat
from samestep.parallel.gradients.synchronizer import GradientSynchronizer, Reference, SyncConfig
from samestep.ranks.collectives.direct import low_latency, separates_gradients
from samestep.ranks.collectives.shared_memory import OneHostWorld
from samestep.ranks.world.process_group import ProcessGroupWorld, current
from samestep.ranks.world.protocol import World

POWERSGD_RANK = 1
"""Rank of the approximation."""
POWERSGD_AFTER = 100
"""Steps with uncompressed gradients before: the first gradients change too fast to be approximated."""


def _compress_ddp(ddp: DistributedDataParallel, compress: str) -> None:
    """Register torch's compression hook; called before the first backward.

    Raises:
        UsageError: the back end does not support this compression.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if compress == "powersgd":
        state: Any = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=POWERSGD_AFTER,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    try:
        ddp.register_comm_hook(None, hooks[compress])
    except TypeError as error:  # bf16 over Gloo
        raise UsageError(
            f"sync='ddp' cannot compress to {compress} here: {error}. "
            "Use sync='bucketed', or compress='fp16'."
        ) from None


class Body(nn.Module):
    """The module that torch's DDP wraps: the model's forward without its hooks, which run outside.

    ::

        model(x)  ->  hooks of model  ->  model.forward, redirected  ->  DDP  ->  Body  ->  the forward it had
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._forward = original_forward(model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's original forward."""
        return self._forward(*args, **kwargs)


class Ddp(GradientSynchronizer):
    """torch's own reducer, with its defaults and limits.

    Each forward is followed by one backward that uses every parameter; otherwise torch raises. It must be
    detached before the process group is destroyed, else Gloo may hang.
    """

    exposed_s = None

    def attach(self) -> None:
        """See `GradientSynchronizer.attach`."""
        if not isinstance(self._config.world, ProcessGroupWorld):
            raise UsageError(
                f"sync='ddp' needs a torch.distributed process group; the world is a "
                f"{type(self._config.world).__name__}. Use sync='bucketed', or call join() first."
            )
        super().attach()
        model, device = self._config.model(), self._config.world.device
        assert model is not None
        ddp = DistributedDataParallel(
            Body(model),
            device_ids=None if device.type == "cpu" else [device],
            bucket_cap_mb=self._config.bucket_bytes / (1 << 20),
            init_sync=False,  # replicate() has broadcast everything
        )
        if self._config.compress is not None:
            _compress_ddp(ddp, self._config.compress)
        self.gradient_bytes = message_bytes(ddp.parameters(), self._config.compress)
        self._ddp = ref(ddp)  # weak: it refers to the model, which this object may outlive
        self._undo = redirect(model, lambda _, *args, **kwargs: ddp(*args, **kwargs))

    def detach(self) -> None:
        """See `GradientSynchronizer.detach`."""
        super().detach()
        self._undo()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """See `GradientSynchronizer.accumulate`; the forward must run inside the block too."""
        ddp = self._ddp()
        assert ddp is not None
        with super().accumulate(), ddp.no_sync():
            yield

    def contribute(self) -> None:
        """Raise UsageError: torch's reducer needs a backward."""
        raise UsageError(
            "sync='ddp' cannot average gradients without a backward. Run the model on an empty batch, or use "
            "sync='bucketed'."
        )

    def finish(self) -> None:
        """See `GradientSynchronizer.finish`; torch does not report how long it waited."""
        super().finish()
        self.exposed_s = None

    def _average(self) -> None:
        average_statistics(self._config.world, self._config.statistics)


COMPRESSIONS = ("fp16", "bf16", "powersgd")
"""``fp16`` and ``bf16`` round each gradient to a dtype of half its size. ``powersgd`` sends a low-rank
approximation and adds its error to the next step. Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS
2019."""


def _check_compression(compress: str | None, sync: str) -> None:
    """Check that a synchronizer supports a compression.

    Raises:
        UsageError: the name is unknown, or needs another synchronizer.
    """
    if compress is None:
        return
    if compress not in COMPRESSIONS:
        raise UsageError(
            f"compress={compress!r} is unknown; choose one of {', '.join(COMPRESSIONS)}, or None"
        )
    if sync == "reference":
        raise UsageError(f"compress={compress!r} needs sync='bucketed' or 'ddp'; sync is 'reference'")
    if compress == "powersgd" and sync != "ddp":
        raise UsageError(f"compress='powersgd' needs sync='ddp'; sync is {sync!r}")


BatchNormMode: TypeAlias = Literal["local", "global"]
BATCH_NORM_MODES = ("local", "global")
AUTO = "auto"
"""Name of the default, which selects a synchronizer by the world."""
SYNCHRONIZERS: dict[str, Callable[[SyncConfig], GradientSynchronizer]] = {
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
    """Train `model` data-parallel: synchronize its weights now, and its gradients in each backward.

    Parameters and buffers become those of rank 0. From then on each top-level backward ends with every
    ``p.grad`` averaged over the ranks, so that clipping and the optimizer use the gradients of the global
    batch. The model is not wrapped: it is the same object, with the same keys in its state dict. All ranks
    call this; in a world of one it attaches nothing.

    The average has weights 1/N. If ranks have different numbers of samples, multiply the loss by
    ``local_count * N / global_count`` before backward. A rank without samples runs the model on an empty
    batch, shape (0, ...), or calls `Replicas.contribute_nothing`.

    Args:
        model: parameters and buffers on this rank's device, trained by ``backward`` and any optimizer.
        world: the ranks; by default those of the job that was joined here.
        sync: the gradient synchronizer: ``bucketed``, ``flat``, ``reference`` or ``ddp``; ``auto`` is
            ``flat`` if the ranks compute on the CPUs of one host, else ``bucketed``.
        batch_norm: ``global`` computes batch statistics over the global batch, as the serial script does;
            each training forward of such a layer then communicates on all ranks, and so does each evaluation
            of one without running statistics. ``local`` computes them over each rank's shard, which is
            faster and another training; running statistics are averaged over ranks with the gradients.
        compress: the compression of gradients: ``fp16`` or ``bf16`` (for ``bucketed`` and ``ddp``), or
            ``powersgd`` (for ``ddp``). The average is less exact by that; replicas stay equal all the same.
            Running statistics are not compressed.
        bucket_bytes: maximum size of a message.
        check_every: number of synchronizations between checksum comparisons (`Replicas.check`); 0 disables
            them.

    Raises:
        UsageError: unknown names, or a model that cannot be replicated (sparse gradients or buffers, no
            shapes yet).
        OutOfStep: the ranks have different models; the message names the first difference.
    """
    _check_choice("sync", sync, (AUTO, *SYNCHRONIZERS))
    _check_choice("batch_norm", batch_norm, BATCH_NORM_MODES)
    _check_compression(compress, sync)
    if bucket_bytes < 1 or check_every < 0:
        raise UsageError(
            f"bucket_bytes={bucket_bytes} must be at least 1 and check_every={check_every} at least 0"
        )
    if model in _replicated:
        raise UsageError(
            f"this {type(model).__name__} is replicated already; call detach() of its Replicas first"
        )
    check_supported(model)
    world = current() if world is None else world
    replicas = Replicas(model, world, check_every=check_every)
    replicas.attach(sync, batch_norm, compress=compress, bucket_bytes=bucket_bytes)
    _replicated[model] = replicas
    return replicas


def _check_choice(name: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        raise UsageError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")


@contextmanager
def accumulate(*targets: "Replicas | nn.Module") -> Iterator[None]:
    """Accumulate gradients on each rank, without synchronization, for the duration of a block.

    Use it for all but the last micro-batch of a step; the first backward after the block averages the
    accumulated gradients. Forward and backward both belong inside the block.

    Args:
        targets: the models, or what `replicate` returned for them.
    """
    with ExitStack() as stack:
        for target in targets:
            stack.enter_context(_handle(target).accumulate())
        yield


class Replicas:
    """The handle of a replicated model; also a context manager that detaches at its end."""

    def __init__(self, model: nn.Module, world: World, *, check_every: int) -> None:
        # Weak, so that a model without other references is freed with its hooks.
        self._model = ref(model)
        self._world = world
        self._check_every = check_every
        self._num_syncs = 0
        self._synchronizer: GradientSynchronizer | None = None
        self._undo = ExitStack()

    def attach(
        self, sync: str, batch_norm: BatchNormMode, *, compress: str | None, bucket_bytes: int
    ) -> None:
        """Broadcast the model and attach the synchronizer; called once, by `replicate`."""
        self.sync, self.batch_norm = sync, batch_norm
        model = self._model()
        assert model is not None
        if self._world.place.size == 1:
            return
        self._resolve_sync(compress)
        norms, local = batch_norms(model), batch_norm == "local"
        if not local:
            check_torch_forward(norms)
        check_same_structure(self._world, model)
        broadcast_values(self._world, model)
        shared: dict[str, Norm] = {**instance_norms(model), **(norms if local else {})}
        tracked = track(shared)
        self._parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._checked_buffers = _buffers_to_check(model, tracked)
        self._statistics = by_kind(tracked.values())
        with ExitStack() as undo:
            redirected = use_local_statistics(shared.values(), tracked.values())
            for restore in redirected + ([] if local else use_global_statistics(norms.values(), self._world)):
                undo.callback(restore)
            config = SyncConfig(
                world=self._world,
                model=self._model,
                parameters=self._parameters,
                statistics=self._statistics,
                bucket_bytes=bucket_bytes,
                compress=compress,
                may_overlap=self.sync != "ddp"
                and (local or not norms or separates_gradients(self._world))
                and not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()),
                after_sync=self._after_sync,
            )
            self._synchronizer = SYNCHRONIZERS[self.sync](config)
            self._synchronizer.attach()
            undo.callback(self._synchronizer.detach)
            undo.callback(finalize(model, self._synchronizer.detach).detach)
            self._undo = undo.pop_all()

    def _resolve_sync(self, compress: str | None) -> None:
        """Resolve ``auto``, and use shared memory or direct connections where ranks can."""
        if self.sync == "flat" or (self.sync == AUTO and compress is None):
            self._world = low_latency(self._world)
        if self.sync == AUTO:
            near = isinstance(self._world, OneHostWorld) and compress is None
            self.sync = "flat" if near else "bucketed"

    @property
    def exposed_s(self) -> float | None:
        """Seconds for which the last synchronization blocked backward.

        It is 0 in a world of one and None under ``ddp``. On an accelerator it is host time.
        """
        return 0.0 if self._synchronizer is None else self._synchronizer.exposed_s

    def when_exchange_begins(self, call: Callable[[], None]) -> bool:
        """Register `call` to run whenever this rank's backward has ended and only communication is left.

        Returns:
            whether this is supported: not in a world of one, nor under ``ddp``.
        """
        if self._synchronizer is None or self._synchronizer.exposed_s is None:
            return False
        self._synchronizer.wait_begins = call
        return True

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """See `samestep.accumulate`."""
        if self._synchronizer is None:
            yield
            return
        with self._synchronizer.accumulate():
            yield

    def contribute_nothing(self) -> None:
        """Synchronize gradients in this step without running the model.

        For a rank that has no samples and cannot run an empty batch either. Accumulated gradients of this
        rank are still averaged. Call it for several models in the order in which they were replicated.

        Raises:
            UsageError: the model has batch norm over the global batch, whose forward runs on all ranks.
        """
        model = self._model()
        if self._synchronizer is None or model is None:
            return
        if self.batch_norm == "global" and any(norm.training for norm in batch_norms(model).values()):
            raise UsageError(
                "contribute_nothing() does not work with batch_norm='global', whose forward communicates on "
                "all ranks. Run the model on an empty batch, of shape (0, ...), instead."
            )
        self._synchronizer.contribute()

    def check(self) -> None:
        """Compare the bits of all parameters and buffers between the ranks.

        Non-persistent buffers are left out, and so are running statistics that each rank computes over its
        shard (local batch norm, instance norm); those are averaged first, if forwards without a backward
        have changed them. The cost is one pass over the weights: 3 to 4 ns per element and some 50 us per
        tensor on one CPU core, 0.5 ms for the tutorials' ConvNet (measured).

        Raises:
            OutOfStep: the replicas differ; the message names ranks and the first tensor.
            UsageError: parameters were added or replaced since `replicate`.
        """
        if self._synchronizer is not None:
            average_statistics(self._world, self._statistics)
        self._compare()

    def _compare(self) -> None:
        model = self._model()
        if self._synchronizer is None or model is None:
            return
        parameters: dict[str, Tensor] = dict(model.named_parameters())
        for name in parameters | self._parameters:
            if parameters.get(name) is not self._parameters.get(name):
                raise UsageError(
                    f"parameter {name} was added, replaced or removed after replicate(), so its gradient is "
                    "not averaged. Call detach(), change the model on all ranks, and replicate() it again."
                )
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in self._checked_buffers}
        check_equal(self._world, parameters | buffers)

    def detach(self) -> None:
        """Remove everything that `replicate` has attached; the model keeps its values."""
        self._undo.close()
        self._synchronizer = None
        model = self._model()
        if model is not None and _replicated.get(model) is self:
            del _replicated[model]

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _after_sync(self) -> None:
        self._num_syncs += 1
        if self._check_every and self._num_syncs % self._check_every == 0:
            self._compare()


_replicated: "WeakKeyDictionary[nn.Module, Replicas]" = WeakKeyDictionary()


def _handle(target: "Replicas | nn.Module") -> Replicas:
    if isinstance(target, Replicas):
        return target
    if target not in _replicated:
        raise UsageError(f"this {type(target).__name__} has not been replicated: call replicate(model) first")
    return _replicated[target]


def _buffers_to_check(model: nn.Module, tracked: Iterable[str]) -> set[str]:
    """Return the names of the buffers that must be equal: all persistent ones but local statistics."""
    local = {f"{name}.{kind}".lstrip(".") for name in tracked for kind in ("running_mean", "running_var")}
    return set(model.state_dict(keep_vars=True)) - local
