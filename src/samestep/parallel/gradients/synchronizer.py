"""Defines the base class of gradient synchronizers: hooks on parameters, and work at the end of backward."""

import itertools
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from weakref import ReferenceType

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from samestep.base.observers import Observers
from samestep.base.place import Place
from samestep.hooks import backward
from samestep.parallel.gradients.batch_norm import RunningStatistics, average_statistics
from samestep.parallel.gradients.bucket import dense_gradient
from samestep.ranks.collectives.shared_memory import OneHostWorld
from samestep.ranks.world.protocol import World

_orders = itertools.count()
_attached: dict[Place, dict[int, bool]] = defaultdict(dict)
"""For each rank of this process, the orders of its attached synchronizers and whether they may overlap."""
SYNCHRONIZATIONS: "Observers[GradientSynchronizer]" = Observers()
"""Observers of each time that a synchronizer averages gradients."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """The configuration of a synchronizer."""

    world: World
    model: ReferenceType[nn.Module]
    """Weak, so that a synchronizer does not keep its model alive."""
    parameters: Mapping[str, Tensor]
    """All parameters by name, tied ones once, frozen ones too."""
    statistics: Sequence[RunningStatistics]
    """Running statistics that are averaged with the gradients."""
    bucket_bytes: int
    compress: str | None = None
    """Compression of the gradients; see `samestep.parallel.gradients.replicate`."""
    may_overlap: bool
    """False if other collectives run inside backward, because ranks could call both in another order."""
    after_sync: Callable[[], None]
    """Called after each synchronization."""


class GradientSynchronizer(ABC):
    """Averages the gradients of one model over the ranks, at the end of each top-level backward.

    Gradients are averaged with weights 1/N; any other factor multiplies the loss. Averaging equal values
    changes nothing. So a second backward without ``zero_grad``, retained graphs, several losses and nested
    graphs give correct results: ``p.grad`` holds an average, a backward adds this rank's part, and the
    average of the sum is the sum of the averages.

    All ranks synchronize together: if any rank runs a backward through the model outside `accumulate`, every
    rank does so, or calls `contribute`.
    """

    exposed_s: float | None = 0.0
    """Seconds for which the last synchronization blocked the caller of backward; None if not measured."""
    gradient_bytes: int | None = None
    """Bytes of the gradients of one synchronization, as they are sent; None if unknown."""

    def __init__(self, config: SyncConfig) -> None:
        self.order = next(_orders)
        self._config = config
        self._accumulating = 0
        self._backward: backward.TopLevelBackward | None = None
        self._may_send_early = False
        self._handles: list[RemovableHandle] = []
        self.wait_begins: Callable[[], None] | None = None
        """Called when this rank's backward has ended and only communication is left."""

    @property
    def is_in_memory(self) -> bool:
        """Whether gradients are averaged in the shared memory of a host."""
        return isinstance(self._config.world, OneHostWorld)

    @property
    def has_backward(self) -> bool:
        """Whether this rank has run a backward since the last synchronization."""
        return self._backward is not None

    def attach(self) -> None:
        """Register hooks on the parameters."""
        for index, parameter in enumerate(self._config.parameters.values()):
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue  # can never have a gradient
            # Frozen parameters get hooks as well: they may be unfrozen later.
            frozen = not parameter.requires_grad
            parameter.requires_grad_()
            hook = partial(self._on_gradient, index)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._handles.append(handle)
            parameter.requires_grad_(not frozen)
        _attached[self._config.world.place][self.order] = self._config.may_overlap
        backward.install()

    def detach(self) -> None:
        """Remove the hooks."""
        if _attached[self._config.world.place].pop(self.order, None) is not None:
            backward.uninstall()
        while self._handles:
            self._handles.pop().remove()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Accumulate gradients on this rank, without synchronization, for the duration of a block."""
        self._accumulating += 1
        try:
            yield
        finally:
            self._accumulating -= 1

    def contribute(self) -> None:
        """Synchronize with the other ranks without a backward."""
        self._backward = None  # of one that ended in an error
        self._prepare()
        self.finish()

    def finish(self) -> None:
        """Average the gradients; see `backward.Participant`."""
        with SYNCHRONIZATIONS.around(self, nullcontext()):
            self._finish()

    def _finish(self) -> None:
        if self.wait_begins is not None:
            self.wait_begins()
        started = time.perf_counter()
        with torch.no_grad():
            self._average()
        self._backward = None
        self.exposed_s = time.perf_counter() - started
        self._config.after_sync()

    def _on_gradient(self, index: int, _: Tensor) -> None:
        if self._accumulating:
            return
        if self._backward is None or not self._backward.is_here():
            self._join(backward.current_backward())
        self._gradient_ready(index)

    def _join(self, current: backward.TopLevelBackward) -> None:
        if current is not self._backward:  # also if the last backward ended in an error
            self._backward = current
            current.join(self)
            self._may_send_early = self._is_first()
            self._prepare()

    def _is_first(self) -> bool:
        """Return whether gradients may be sent during backward.

        Models are synchronized in the order in which they were replicated, whichever of them a rank's
        backward reaches first; so only the first one can send before backward has ended.
        """
        attached = dict(_attached[self._config.world.place])
        return self.order == min(attached, default=None) and all(attached.values())

    def _prepare(self) -> None:  # noqa: B027 - most synchronizers have nothing to prepare
        """Prepare for the first gradient of a backward."""

    def _gradient_ready(self, index: int) -> None:  # noqa: B027 - most wait for the end of backward
        """Record that the gradient of parameter `index` has been accumulated."""

    @abstractmethod
    def _average(self) -> None:
        """Replace every gradient, and the running statistics, by the average over the ranks."""


class Reference(GradientSynchronizer):
    """One blocking all-reduce per parameter: slow, but simple enough to verify the other synchronizers."""

    def _average(self) -> None:
        world = self._config.world
        parameters = list(self._config.parameters.values())
        used = torch.tensor(
            [float(parameter.grad is not None) for parameter in parameters], device=world.device
        )
        world.all_reduce(used)
        self.gradient_bytes = 0
        for (name, parameter), ranks in zip(self._config.parameters.items(), used.tolist(), strict=True):
            if not ranks:
                continue  # no rank has a gradient, so it stays None as in serial training
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grad = dense_gradient(name, parameter)
            assert grad is not None
            # Collectives need contiguous memory, and a gradient may be strided.
            average = grad.contiguous()
            self.gradient_bytes += average.nbytes
            world.average_later(average).wait()
            grad.copy_(average)
        average_statistics(world, self._config.statistics)
