"""What all gradient synchronisers share: hooks on the parameters, and the end of the backward."""

import itertools
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from weakref import ReferenceType

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from samestep.base.place import Place
from samestep.collectives.one_host import OneHostWorld
from samestep.replicas import backward
from samestep.replicas.running import RunningStatistics
from samestep.world.world import World

_orders = itertools.count()
_attached: dict[Place, dict[int, bool]] = defaultdict(dict)
"""The synchronisers attached on each rank of this process: by order, whether they may overlap."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a synchroniser is given to do."""

    world: World
    model: ReferenceType[nn.Module]
    """Weak: who attaches to a model does not keep it alive."""
    parameters: Mapping[str, Tensor]
    """All of them, by name, tied ones once, frozen ones too."""
    statistics: Sequence[RunningStatistics]
    """Averaged in the same exchange as the gradients."""
    bucket_bytes: int
    compress: str | None = None
    """How gradients travel; see `samestep.replicas.compress`."""
    may_overlap: bool
    """False where other collectives run inside backward: theirs and ours could meet in another order."""
    exchanged: Callable[[], None]
    """Called after each exchange."""


class Synchroniser(ABC):
    """Averages the gradients of one model over the ranks, at the end of each outermost backward.

    Gradients are averaged with weights 1/N; any other factor acts upstream, on the loss. Averaging values
    that are equal already changes nothing, and this is why a second backward without ``zero_grad``,
    retained graphs, several losses and nested graphs all come out right: ``p.grad`` holds an average, a
    backward adds this rank's part, and the average of the sum is the sum of the averages.

    The ranks exchange in step: if any rank runs a backward through the model outside `accumulate`, all do, or
    call `contribute`.
    """

    exposed_s: float | None = 0.0
    """Seconds the last exchange kept the caller of backward waiting; None where it cannot be seen."""
    gradient_bytes: int | None = None
    """Bytes of the gradients of one exchange, as they travel; None where nobody can say."""

    def __init__(self, job: Job) -> None:
        self.order = next(_orders)
        self._job = job
        self._accumulating = 0
        self._backward: backward.Backward | None = None
        self._leads = False
        self._handles: list[RemovableHandle] = []
        self.exchange_begins: Callable[[], None] | None = None
        """Called when this rank's backward is through and only the exchange is waited for."""

    @property
    def is_in_memory(self) -> bool:
        """Whether gradients go through the memory that the ranks of a host share."""
        return isinstance(self._job.world, OneHostWorld)

    def attach(self) -> None:
        """Listen to the parameters."""
        for index, parameter in enumerate(self._job.parameters.values()):
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue  # can never have a gradient
            # Frozen parameters are listened to as well: they may be unfrozen later.
            frozen = not parameter.requires_grad
            parameter.requires_grad_()
            hook = partial(self._on_gradient, index)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._handles.append(handle)
            parameter.requires_grad_(not frozen)
        _attached[self._job.world.place][self.order] = self._job.may_overlap
        backward.watch()

    def detach(self) -> None:
        """Stop listening."""
        if _attached[self._job.world.place].pop(self.order, None) is not None:
            backward.unwatch()
        while self._handles:
            self._handles.pop().remove()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Let gradients add up on this rank, without an exchange, for the duration of a block."""
        self._accumulating += 1
        try:
            yield
        finally:
            self._accumulating -= 1

    def contribute(self) -> None:
        """Take part in an exchange without a backward."""
        self._begin()
        self.finish()

    def finish(self) -> None:
        """Exchange; see `backward.Listener`."""
        if self.exchange_begins is not None:
            self.exchange_begins()
        started = time.perf_counter()
        with torch.no_grad():
            self._exchange()
        self._backward = None
        self.exposed_s = time.perf_counter() - started
        self._job.exchanged()

    def _on_gradient(self, index: int, _: Tensor) -> None:
        if self._accumulating:
            return
        if self._backward is None or not self._backward.is_here():
            self._join(backward.under_way())
        self._gradient_ready(index)

    def _join(self, current: backward.Backward) -> None:
        if current is not self._backward:  # also where the last one ended in an error and left its state
            self._backward = current
            current.join(self)
            self._leads = self._may_lead()
            self._begin()

    def _may_lead(self) -> bool:
        """Return whether gradients may leave during backward: nobody else's exchange can come before.

        Models are exchanged in the order in which they were replicated, whichever of them a rank's backward
        reaches first; so only the first one knows.
        """
        attached = dict(_attached[self._job.world.place])
        return self.order == min(attached, default=None) and all(attached.values())

    def _begin(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare for the first gradient of a backward."""

    def _gradient_ready(self, index: int) -> None:  # noqa: B027 - most wait for the end
        """Note that the gradient of parameter `index` has been accumulated."""

    @abstractmethod
    def _exchange(self) -> None:
        """Make every gradient, and the running statistics, the average over the ranks."""
