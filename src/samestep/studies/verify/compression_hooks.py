"""Recognizes the communication hooks of torch that round or approximate the gradients they average."""

from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

_FOLDER = "torch.distributed.algorithms.ddp_comm_hooks."
_MODULES = ("powerSGD_hook", "quantization_hooks")
_NAMES = ("fp16_compress", "bf16_compress")
Hook = Callable[..., Any]


def compresses(hook: Hook) -> bool:
    """Return whether a communication hook compresses gradients, by its module and name."""
    module = getattr(hook, "__module__", "") or ""
    known = module.removeprefix(_FOLDER)
    return known != module and (known in _MODULES or getattr(hook, "__name__", "").startswith(_NAMES))


def without_compression(original: Callable[..., None], model: Any, state: Any, hook: Hook) -> None:
    """Register a hook that averages gradients as they are in the place of one that compresses them."""
    if compresses(hook):
        original(model, None, allreduce_hook)
    else:
        original(model, state, hook)
