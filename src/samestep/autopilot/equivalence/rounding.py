"""Compares tensors up to the rounding of the precision in which they were computed.

A loss in single precision may be computed from products in half precision, under autocast or with TF32.
Slices of a batch then differ by the rounding of these products, since a device chooses its kernels by shape.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_RELATIVE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""The tolerated rounding, relative to the largest value."""
_OF_SCALE = {torch.float64: 1e-11, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""The tolerated rounding, relative to the operands, which may cancel."""
_COARSER = 0.25
"""Both for fewer bits than those of bfloat16."""
_TF32 = torch.float16  # TF32 has as many bits


class ResultPrecision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records the coarsest precision of the results of its operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtypes: set[torch.dtype] = set()

    def coarsest(self, device: torch.device, *operands: Tensor) -> torch.dtype:
        """Return the coarsest precision of the operands and of the results so far, as a dtype.

        Operands that are all of double precision are those of a disturbed call, which wants it throughout.
        """
        own = _of_floats(tensor.dtype for tensor in operands)
        if own == {torch.float64}:
            return torch.float64
        dtypes = own | _of_floats(self._dtypes)
        if torch.float32 in dtypes:
            dtypes |= _of_products(device)
        return max(dtypes, key=_rounding, default=torch.float32)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self._dtypes.add(tensor.dtype)
        return result


def _of_floats(dtypes: Iterable[torch.dtype]) -> set[torch.dtype]:
    """Return the floating-point dtypes, those of the parts of complex ones included."""
    return {dtype.to_real() for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}


def _rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _of_products(device: torch.device) -> set[torch.dtype]:
    """Return the precisions, beside their own, in which a device computes products in single precision."""
    found: set[torch.dtype] = set()
    if torch.is_autocast_enabled(device.type):
        found.add(torch.get_autocast_dtype(device.type))
    backends = torch.backends
    owners = [backends.mkldnn] if device.type == "cpu" else [backends.cuda, backends.cudnn]
    operations = [getattr(owner, name, None) for owner in owners for name in ("matmul", "conv", "rnn")]
    settings = [getattr(operation, "fp32_precision", "none") for operation in operations]
    # torch refuses to read its older settings once a newer one has been changed.
    with suppress(RuntimeError):
        settings.append({"high": "tf32", "medium": "bf16"}.get(torch.get_float32_matmul_precision(), "none"))
    with suppress(RuntimeError):
        if device.type == "cuda" and (backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32):
            settings.append("tf32")
    return found | {kind for name, kind in (("tf32", _TF32), ("bf16", torch.bfloat16)) if name in settings}


def close(
    found: Tensor, expected: Tensor, *, scale: float = 0.0, precision: torch.dtype | None = None
) -> bool:
    """Return whether two tensors are equal but for rounding.

    Args:
        found: a tensor.
        expected: another one.
        scale: the largest value of the operands, which may cancel.
        precision: the coarsest precision in which they were computed; None for their own.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not found.numel():
        return True
    if not (found.is_floating_point() or found.is_complex()):
        return torch.equal(found, expected)
    own = found.dtype.to_real()
    coarsest = own if precision is None else max(own, precision, key=_rounding)
    relative, of_scale = (table.get(coarsest, _COARSER) for table in (_RELATIVE, _OF_SCALE))
    a, b = found.detach(), expected.detach()
    least = max(relative * largest(b), of_scale * scale)
    return torch.allclose(a, b, rtol=relative, atol=least, equal_nan=True)


def largest(*tensors: Tensor) -> float:
    """Return the largest finite absolute value of floating-point tensors; 0 if there is none."""
    found = 0.0
    for tensor in tensors:
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
            absolute = tensor.detach().abs()
            value = float(absolute.max())  # the usual case; a NaN is the maximum, too
            if not math.isfinite(value):
                finite = absolute[torch.isfinite(absolute)]
                value = float(finite.max()) if finite.numel() else 0.0
            found = max(found, value)
    return found


def differing_buffer(
    kept: Mapping[str, Tensor], whole: Mapping[str, Tensor], precision: torch.dtype | None = None
) -> str | None:
    """Return the name of a buffer that differs by more than rounding, if there is one.

    A running mean that is zero but for rounding is compared relative to the running standard deviation.
    """
    for name, value in whole.items():
        owner = name.rpartition(".")[0]
        variance = whole.get(f"{owner}.running_var" if owner else "running_var")
        scale = largest(variance) ** 0.5 if variance is not None else 0.0
        if name not in kept or not close(kept[name], value, scale=scale, precision=precision):
            return name
    return None
