"""torch's DistributedDataParallel behind the same door: for comparison, and for those who want it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samestep.base.errors import UsageError
from samestep.replicas.compress import compress_ddp, message_bytes
from samestep.replicas.redirect import original_forward, redirect
from samestep.replicas.running import average_statistics
from samestep.replicas.synchroniser import Synchroniser
from samestep.world.process_group import ProcessGroupWorld


class Body(nn.Module):
    """What torch's DDP is given to wrap: the model's forward without its hooks, which run outside.

    ::

        model(x)  ->  hooks of model  ->  model.forward, redirected  ->  DDP  ->  Body  ->  the forward it had
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._forward = original_forward(model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward that the model had."""
        return self._forward(*args, **kwargs)


class Ddp(Synchroniser):
    """torch's own reducer, with its defaults and its limits.

    Each forward is followed by one backward, and every parameter is used in it; torch says so where it is
    not. Must be detached before the process group is torn down, else Gloo may hang.
    """

    exposed_s = None

    def attach(self) -> None:
        """See `Synchroniser.attach`."""
        if not isinstance(self._job.world, ProcessGroupWorld):
            raise UsageError(
                f"sync='ddp' needs a torch.distributed process group, and this is a "
                f"{type(self._job.world).__name__}. Use sync='bucketed', or join() the job first."
            )
        super().attach()
        model, device = self._job.model(), self._job.world.device
        assert model is not None
        ddp = DistributedDataParallel(
            Body(model),
            device_ids=None if device.type == "cpu" else [device],
            bucket_cap_mb=self._job.bucket_bytes / (1 << 20),
            init_sync=False,  # replicate() has compared and broadcast everything
        )
        if self._job.compress is not None:
            compress_ddp(ddp, self._job.compress)
        self.gradient_bytes = message_bytes(ddp.parameters(), self._job.compress)
        self._ddp = ref(ddp)  # it holds the model, and what is held here outlives a model that is dropped
        self._undo = redirect(model, lambda _, *args, **kwargs: ddp(*args, **kwargs))

    def detach(self) -> None:
        """See `Synchroniser.detach`."""
        super().detach()
        self._undo()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """See `Synchroniser.accumulate`; the forward must run inside it too."""
        ddp = self._ddp()
        assert ddp is not None
        with super().accumulate(), ddp.no_sync():
            yield

    def contribute(self) -> None:
        """Refuse: torch's reducer offers no such thing."""
        raise UsageError(
            "sync='ddp' cannot take part in an exchange without a backward: run the model on an empty batch, "
            "or use sync='bucketed'."
        )

    def finish(self) -> None:
        """See `Synchroniser.finish`; torch does not say how long it waited."""
        super().finish()
        self.exposed_s = None

    def _exchange(self) -> None:
        average_statistics(self._job.world, self._job.statistics)
