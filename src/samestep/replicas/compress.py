"""How gradients travel smaller than they are."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from samestep.base.errors import UsageError
from samestep.replicas.bucket import real

_MESSAGES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPRESSIONS = (*_MESSAGES, "powersgd")
"""``fp16`` and ``bf16`` round each gradient to a type of half its size. ``powersgd`` sends the best matrices
of low rank and keeps what they leave out for the next step. Source: Vogels, Karimireddy, Jaggi, "PowerSGD",
NeurIPS 2019."""

POWERSGD_RANK = 1
"""Rank of the matrices that stand for a gradient."""
POWERSGD_AFTER = 100
"""Steps with whole gradients before: the first ones change too fast to be approximated."""


def check_compression(compress: str | None, sync: str) -> None:
    """Refuse what the synchroniser cannot do.

    Raises:
        UsageError: an unknown name, or one that needs another synchroniser.
    """
    if compress is None:
        return
    if compress not in COMPRESSIONS:
        raise UsageError(
            f"no compression is called {compress!r}: choose one of {', '.join(COMPRESSIONS)}, or None"
        )
    if sync == "reference":
        raise UsageError(f"compress={compress!r} needs sync='bucketed' or 'ddp'; use one of them")
    if compress == "powersgd" and sync != "ddp":
        raise UsageError("compress='powersgd' is torch's, and needs sync='ddp'")


def compressed(dtype: torch.dtype, compress: str | None) -> torch.dtype:
    """Return in which dtype gradients of `dtype` travel: never a larger one."""
    message = None if compress is None else _MESSAGES.get(compress)
    return dtype if message is None or message.itemsize >= dtype.itemsize else message


def message_bytes(parameters: Iterable[Tensor], compress: str | None = None) -> int | None:
    """Return the bytes of all gradients as they travel; None where that changes from step to step."""
    if compress == "powersgd":
        return None
    gradients = [real(one) for one in parameters if one.requires_grad]
    return sum(one.numel() * compressed(one.dtype, compress).itemsize for one in gradients)


def compress_ddp(ddp: DistributedDataParallel, compress: str) -> None:
    """Let torch's reducer compress; called before its first backward.

    Raises:
        UsageError: it cannot compress so over this back end.
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
    except TypeError as error:  # bf16 is refused for Gloo
        raise UsageError(
            f"sync='ddp' cannot compress to {compress} here: {error}. "
            "Use sync='bucketed', or compress='fp16'."
        ) from None
