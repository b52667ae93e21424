"""Observes the communication of a script: the gradients of its models, and each call that communicates.

On CPUs, the copies of gradients into buckets are timed, which DistributedDataParallel makes inside backward.
It has a hook on each parameter, which copies the gradient and starts the all-reduce of a full bucket, on the
script's own thread::

    gradient accumulated | post-accumulate-grad hooks, ours the last | the node's hooks: DDP's, then ours |
                                                                     ^ begins                        ends ^
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.parallel.gradients.bucket import message_bytes
from samestep.parallel.gradients.synchronizer import SYNCHRONIZATIONS, GradientSynchronizer
from samestep.ranks.hang.flight_recorder import OWN_COLLECTIVES

MIN_ELEMENTS = 65_536
"""Smallest parameter that is timed: below, two Python calls cost more than 1 % of its gradient's time."""


@dataclass(slots=True, eq=False)
class DdpInfo:
    """A `DistributedDataParallel`, which overlaps communication with backward."""

    model: ref[DistributedDataParallel]
    gradient_bytes: int | None = None
    """Bytes of the gradients as they are sent; None before `measure`, and if a hook sends something else."""
    is_timed: bool = False
    """Whether its copies are timed."""


@dataclass(slots=True, frozen=True, eq=False)
class ModelInfo:
    """A model that a script calls."""

    ids: frozenset[int]  # ids of the model and of its attribute `module`, which a wrapper has
    sync: str  # ``ddp`` or ``fsdp``, by the outermost such wrapper in the model; empty without one
    ddps: tuple[DdpInfo, ...]  # all `DistributedDataParallel` in the model, itself included


class ModelRegistry:
    """The models of a script, each inspected once.

    `before_copy` and `after_copy` are called around DDP's copy of a large gradient into a bucket.
    """

    def __init__(self, before_copy: Callable[..., None], after_copy: Callable[..., None]) -> None:
        self._before_copy, self._after_copy = before_copy, after_copy
        self._known: WeakKeyDictionary[nn.Module, ModelInfo] = WeakKeyDictionary()
        self._ddps: WeakKeyDictionary[nn.Module, DdpInfo] = WeakKeyDictionary()
        self.unmeasured: list[DdpInfo] = []
        """Models whose gradients are measured when a backward begins: by then hooks are registered."""
        self._handles: list[RemovableHandle] = []

    def of(self, module: nn.Module, *, on_host: bool) -> ModelInfo:
        """Return the information about a model.

        The model may be compiled, or contain a wrapper. With `on_host`, DDP's copies are timed, which an
        accelerator only queues.
        """
        info = self._find(module)
        for ddp in info.ddps if on_host else ():
            model = ddp.model()
            if model is not None and not ddp.is_timed:
                ddp.is_timed = True
                self._time_copies(model)
        return info

    def _time_copies(self, model: DistributedDataParallel) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.numel() >= MIN_ELEMENTS:
                node: Any = get_gradient_edge(parameter).node
                hook: Any = parameter.register_post_accumulate_grad_hook
                self._handles += hook(self._before_copy), node.register_hook(self._after_copy)

    def measure(self) -> None:
        """Measure the gradients of new models."""
        while self.unmeasured:
            ddp = self.unmeasured.pop()
            model = ddp.model()
            ddp.gradient_bytes = None if model is None else _gradient_bytes(model)

    def remove_hooks(self) -> None:
        """Stop timing copies."""
        for handle in self._handles:
            handle.remove()

    def _find(self, module: nn.Module) -> ModelInfo:
        info = self._known.get(module)
        if info is None:
            parts = list(module.modules())
            info = self._known[module] = ModelInfo(
                frozenset({id(module), id(getattr(module, "module", None))}),
                next(filter(None, map(_sync, parts)), ""),
                tuple(self._ddp(part) for part in parts if isinstance(part, DistributedDataParallel)),
            )
        return info

    def _ddp(self, model: DistributedDataParallel) -> DdpInfo:
        info = self._ddps.get(model)
        if info is None:
            info = self._ddps[model] = DdpInfo(ref(model))
            self.unmeasured.append(info)
        return info


def _sync(module: nn.Module) -> str:
    """Return how a wrapper synchronizes gradients; empty for any other module."""
    if isinstance(module, DistributedDataParallel):
        return "ddp"
    return "fsdp" if type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")) else ""


def _gradient_bytes(model: Any) -> int | None:
    is_dense = not getattr(model, "_comm_hooks", ()) and getattr(model, "mixed_precision", None) is None
    if not is_dense or any(getattr(module, "sparse", False) for module in model.modules()):
        return None
    ignored = model.parameters_to_ignore
    return message_bytes(
        parameter for name, parameter in model.module.named_parameters() if name not in ignored
    )


COLLECTIVES = "collectives"
"""Communication by torch.distributed."""
INLINE = "inline"
"""Communication by the thread that calls it: through shared memory, or by direct connections."""


@contextmanager
def communication_observed(
    collective: Callable[..., Any],
    within: Callable[[str], AbstractContextManager[object]],
    finished: Callable[[GradientSynchronizer], None],
) -> Iterator[None]:
    """Observe all communication of this process for the duration of a block.

    Args:
        collective: executes the communication of torch.distributed: it gets the function and its arguments.
        within: returns the context of other communication, which is `INLINE`, or the name of a gradient
            synchronizer.
        finished: called with each gradient synchronizer that has averaged gradients.
    """

    @contextmanager
    def averaging(synchronizer: GradientSynchronizer) -> Iterator[None]:
        with within(type(synchronizer).__name__.lower()):
            yield
        finished(synchronizer)

    waits = (declarations.BROADCAST_BUFFERS, declarations.WORK_WAIT, declarations.FUTURE_WAIT)
    with (
        attached_all(dict.fromkeys((*declarations.COLLECTIVES, *waits), wrapping(collective))),
        OWN_COLLECTIVES.subscribed(lambda _: within(INLINE)),
        SYNCHRONIZATIONS.subscribed(averaging),
    ):
        yield


def is_python_thread() -> bool:
    """Return whether Python started this thread: torch's autograd starts its threads in C++."""
    this = threading.get_ident()
    dummy = threading._DummyThread  # noqa: SLF001 - the class of a foreign thread that calls current_thread()
    return any(thread.ident == this and not isinstance(thread, dummy) for thread in threading.enumerate())
