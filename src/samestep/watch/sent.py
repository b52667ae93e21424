"""How many bytes of gradients a worker gives to the exchange in a step: what its cost is told by."""

from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samestep.replicas.compress import message_bytes
from samestep.replicas.synchroniser import Synchroniser


class Sent:
    """Counts the gradients of the step under way, as large as they travel.

    Those of a `DistributedDataParallel` are exchanged in the first backward after it was called, once however
    often it was; those of a synchroniser when it says so.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._is_known = True
        self._sizes: WeakKeyDictionary[nn.Module, int | None] = WeakKeyDictionary()
        self._called: set[ref[DistributedDataParallel]] = set()
        """The models whose gradients the next backward exchanges."""
        self.is_in_memory = False
        """Whether the last that were exchanged went through the memory of a host."""

    def called(self, model: DistributedDataParallel) -> None:
        """Note a call of training."""
        if model.require_backward_grad_sync:
            self._called.add(ref(model))

    def differentiated(self) -> None:
        """Note that a backward begins."""
        for reference in self._called:
            if (model := reference()) is None:
                continue
            if model not in self._sizes:
                self._sizes[model] = _of_ddp(model)
            self._add(self._sizes[model])
        self._called.clear()

    def finished(self, synchroniser: Synchroniser) -> None:
        """Note an exchange of a synchroniser."""
        self._add(synchroniser.gradient_bytes)
        self.is_in_memory = synchroniser.is_in_memory

    def take(self) -> int | None:
        """Return the bytes of the step that ends; None where there were none, or nobody can say."""
        found, is_known = self._bytes, self._is_known
        self._bytes, self._is_known = None, True
        return found if is_known else None

    def _add(self, size: int | None) -> None:
        self._is_known &= size is not None
        self._bytes = (self._bytes or 0) + (size or 0)


def _of_ddp(model: Any) -> int | None:
    """Return the bytes of a model's gradients; None where they travel as something else."""
    is_whole = not getattr(model, "_comm_hooks", ()) and getattr(model, "mixed_precision", None) is None
    if not is_whole or any(getattr(module, "sparse", False) for module in model.modules()):
        return None
    ignored = model.parameters_to_ignore
    return message_bytes(one for name, one in model.module.named_parameters() if name not in ignored)
