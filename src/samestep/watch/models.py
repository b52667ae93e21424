"""What is known of a model that a script calls: what exchanges its gradients, and how large those are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from samestep.replicas.compress import message_bytes
from samestep.watch.bucketed import time_copies


@dataclass(slots=True, eq=False)
class Replica:
    """A `DistributedDataParallel`: it overlaps its exchange with backward."""

    model: ref[DistributedDataParallel]
    gradient_bytes: int | None = None
    """As they travel, once they are measured; None where they travel as something else."""
    is_timed: bool = False
    """Whether its copies are."""

    def measure(self) -> None:
        """Find out how large its gradients are."""
        held = self.model()
        self.gradient_bytes = None if held is None else _gradient_bytes(held)


@dataclass(slots=True, frozen=True, eq=False)
class Model:
    """A model that is called."""

    ids: frozenset[int]
    """Its own, and that of its `module`, which a wrapper has."""
    sync: str
    """How the outermost wrapper that it is or has in it exchanges gradients; empty without one."""
    replicas: tuple[Replica, ...]
    """Those that it is or has in it."""


class Models:
    """Finds out about each model once: what is called may be a compiled one, or hold one as a part.

    Args:
        before_copy: called before what exchanges a model's gradients copies one, see `time_copies`.
        after_copy: called after.
    """

    def __init__(self, before_copy: Callable[..., None], after_copy: Callable[..., None]) -> None:
        self._before_copy, self._after_copy = before_copy, after_copy
        self._known: WeakKeyDictionary[nn.Module, Model] = WeakKeyDictionary()
        self._replicas: WeakKeyDictionary[nn.Module, Replica] = WeakKeyDictionary()
        self._unmeasured: list[Replica] = []
        self._handles: list[RemovableHandle] = []

    def of(self, module: nn.Module, *, on_host: bool) -> Model:
        """Return what is known of a model.

        Args:
            module: it is.
            on_host: whether its copies are to be timed: on an accelerator that is queued.
        """
        found = self._find(module)
        for replica in found.replicas if on_host else ():
            held = replica.model()
            if held is not None and not replica.is_timed:
                replica.is_timed = True
                self._handles += time_copies(held, self._before_copy, self._after_copy)
        return found

    def measure(self) -> None:
        """Find out how large the gradients are: not before a backward, as a hook may say how they travel."""
        while self._unmeasured:
            self._unmeasured.pop().measure()

    def leave(self) -> None:
        """Time no more copies."""
        for handle in self._handles:
            handle.remove()

    def _find(self, module: nn.Module) -> Model:
        found = self._known.get(module)
        if found is None:
            parts = list(module.modules())
            found = self._known[module] = Model(
                frozenset({id(module), id(getattr(module, "module", None))}),
                next(filter(None, map(_sync, parts)), ""),
                tuple(self._replica(one) for one in parts if isinstance(one, DistributedDataParallel)),
            )
        return found

    def _replica(self, model: DistributedDataParallel) -> Replica:
        found = self._replicas.get(model)
        if found is None:
            found = self._replicas[model] = Replica(ref(model))
            self._unmeasured.append(found)
        return found


def _sync(module: nn.Module) -> str:
    """Return how a wrapper exchanges gradients; nothing where it is none."""
    if isinstance(module, DistributedDataParallel):
        return "ddp"
    return "fsdp" if type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")) else ""


def _gradient_bytes(model: Any) -> int | None:
    is_whole = not getattr(model, "_comm_hooks", ()) and getattr(model, "mixed_precision", None) is None
    if not is_whole or any(getattr(module, "sparse", False) for module in model.modules()):
        return None
    ignored = model.parameters_to_ignore
    return message_bytes(one for name, one in model.module.named_parameters() if name not in ignored)
