"""Averages gradients with torch's DistributedDataParallel, behind the interface of a synchronizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samestep.base.errors import UsageError
from samestep.hooks.module_parts import original_forward, redirect
from samestep.parallel.gradients.bucket import message_bytes
from samestep.parallel.gradients.running_statistics import average_statistics
from samestep.parallel.gradients.synchronizer import GradientSynchronizer
from samestep.ranks.world.process_group import ProcessGroupWorld

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
