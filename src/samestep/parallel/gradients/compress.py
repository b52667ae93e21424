"""Compresses gradients for communication."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from samestep.base.errors import UsageError
from samestep.parallel.gradients.bucket import real

_MESSAGES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPRESSIONS = (*_MESSAGES, "powersgd")
"""``fp16`` and ``bf16`` round each gradient to a dtype of half its size. ``powersgd`` sends a low-rank
approximation and adds its error to the next step. Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS
2019."""

POWERSGD_RANK = 1
"""Rank of the approximation."""
POWERSGD_AFTER = 100
"""Steps with uncompressed gradients before: the first gradients change too fast to be approximated."""


def check_compression(compress: str | None, sync: str) -> None:
    """Check that a synchronizer supports a compression.

    Raises:
        UsageError: the name is unknown, or needs another synchronizer.
    """
    if compress is None:
        return
    if compress not in COMPRESSIONS:
        raise UsageError(
            f"compress={compress!r} is unknown; choose one of {', '.join(COMPRESSIONS)}, or None"
        )
    if sync == "reference":
        raise UsageError(f"compress={compress!r} needs sync='bucketed' or 'ddp'; sync is 'reference'")
    if compress == "powersgd" and sync != "ddp":
        raise UsageError(f"compress='powersgd' needs sync='ddp'; sync is {sync!r}")


def compressed(dtype: torch.dtype, compress: str | None) -> torch.dtype:
    """Return the dtype in which gradients of `dtype` are sent: never a larger one."""
    message = None if compress is None else _MESSAGES.get(compress)
    return dtype if message is None or message.itemsize >= dtype.itemsize else message


def message_bytes(parameters: Iterable[Tensor], compress: str | None = None) -> int | None:
    """Return the bytes of all gradients as they are sent; None if that changes from step to step."""
    if compress == "powersgd":
        return None
    gradients = [real(one) for one in parameters if one.requires_grad]
    return sum(one.numel() * compressed(one.dtype, compress).itemsize for one in gradients)


def compress_ddp(ddp: DistributedDataParallel, compress: str) -> None:
    """Register torch's compression hook; called before the first backward.

    Raises:
        UsageError: the back end does not support this compression.
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
    except TypeError as error:  # bf16 over Gloo
        raise UsageError(
            f"sync='ddp' cannot compress to {compress} here: {error}. "
            "Use sync='bucketed', or compress='fp16'."
        ) from None
