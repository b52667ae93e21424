"""What exchanges the gradients of a model: the wrappers that it is, is in, or has in it."""

from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Wrapped(NamedTuple):
    """The wrappers of a model."""

    sync: str
    """How the outermost of them exchanges gradients; empty without one."""
    replicas: tuple[ref[DistributedDataParallel], ...]
    """Those that overlap their exchange with backward."""


class Wrappers:
    """Finds them, once for each model: what is called may be a compiled one, or hold one as a part."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, Wrapped] = WeakKeyDictionary()

    def of(self, model: nn.Module) -> Wrapped:
        """Return those of a model."""
        found = self._known.get(model)
        if found is None:
            parts = list(model.modules())
            sync = next(filter(None, map(_sync, parts)), "")
            replicas = tuple(ref(one) for one in parts if isinstance(one, DistributedDataParallel))
            found = self._known[model] = Wrapped(sync, replicas)
        return found


def _sync(module: nn.Module) -> str:
    """Return how a wrapper exchanges gradients; nothing where it is none."""
    if isinstance(module, DistributedDataParallel):
        return "ddp"
    return "fsdp" if type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")) else ""
