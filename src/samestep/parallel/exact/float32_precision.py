"""Reads and sets the precisions in which operations compute with single-precision numbers."""

from typing import Any

import torch
from torch.backends import cudnn

_OPERATIONS = (
    ("generic", "all"),
    *(("cuda", operation) for operation in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", operation) for operation in ("all", "matmul", "conv", "rnn")),
)
_HAS_EACH = hasattr(torch._C, "_get_fp32_precision_getter")  # noqa: SLF001 - torch 2.9 and newer


def float32_precisions() -> tuple[Any, ...]:
    """Return the precision in which each kind of operation may compute with single-precision numbers.

    Once a script has set one of them by its new name, torch refuses to read the old names. The public new
    names take ten times as long, and ``mkldnn.fp32_precision`` sets another one than it reads.
    """
    if _HAS_EACH:
        read = torch._C._get_fp32_precision_getter  # noqa: SLF001
        return tuple(read(*operation) for operation in _OPERATIONS)
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32


def set_precisions(precisions: tuple[Any, ...]) -> None:
    """Set the precisions that `float32_precisions` has returned."""
    if not _HAS_EACH:
        torch.set_float32_matmul_precision(precisions[0])
        torch._C._set_cudnn_allow_tf32(precisions[1])  # noqa: SLF001 - what the property of cudnn calls
        return
    for operation, precision in zip(_OPERATIONS, precisions, strict=True):
        torch._C._set_fp32_precision_setter(*operation, precision)  # noqa: SLF001
