"""What is known of a model that a script calls: what exchanges its gradients, and how large those are."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samestep.replicas.compress import message_bytes


@dataclass(slots=True, frozen=True, eq=False)
class Replica:
    """A `DistributedDataParallel`: it overlaps its exchange with backward."""

    model: ref[DistributedDataParallel]
    gradient_bytes: int | None
    """As they travel; None where they travel as something else."""


@dataclass(slots=True, frozen=True, eq=False)
class Model:
    """A model that is called."""

    ids: frozenset[int]
    """Its own, and where it is a wrapper that of what is in it."""
    sync: str
    """How the outermost wrapper that it is or has in it exchanges gradients; empty without one."""
    replicas: tuple[Replica, ...]
    """Those that it is or has in it."""


class Models:
    """Finds out about each model once: what is called may be a compiled one, or hold one as a part."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, Model] = WeakKeyDictionary()
        self._replicas: WeakKeyDictionary[nn.Module, Replica] = WeakKeyDictionary()

    def of(self, module: nn.Module) -> Model:
        """Return what is known of a model."""
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
            found = self._replicas[model] = Replica(ref(model), _gradient_bytes(model))
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
