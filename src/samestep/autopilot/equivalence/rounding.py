"""Compares tensors up to the rounding of the precision in which they were computed.

A loss in single precision may be computed from products in half precision, under autocast or with TF32.
Slices of a batch then differ by the rounding of these products, since a device chooses its kernels by shape.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_RELATIVE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""The tolerated rounding, relative to the largest value: guesses, 6 to 800 units in the last place, and far
more of double precision, which has room."""
_OF_SCALE = {torch.float64: 1e-11, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""The tolerated rounding, relative to the operands, which may cancel: guesses, one to eight units, and far
more of double precision."""
_COARSER = 0.25
"""Both for fewer bits than those of bfloat16: float8 has units of 0.125 and 0.25."""
_TF32 = torch.float16  # TF32 has as many bits
_FILLED, _LARGER = 1e3, 1e6
"""The ratio to the next smaller value from which a value fills masked elements, such as -1e9; and the largest
ratio of operands to a result that is taken for no mask. Guesses, far above the ratios of computed values."""


_ACCUMULATING = re.compile(
    r"mm|mv|dot|matmul|linear|einsum|conv|attention|rnn|lstm|gru|sum|mean|norm(?!al)|softmax|var|std|prod|pool"
    r"|loss|scatter|index_add|bag"
)
"""Names of operations that add many values, in an order that a device chooses by the shape."""
_PRODUCTS = {
    "matmul": re.compile(r"mm|mv|dot|matmul|linear|einsum|attention"),
    "conv": re.compile(r"conv"),
    "rnn": re.compile(r"rnn|lstm|gru"),
}
"""Names of the operations that TF32 concerns, by torch's names of their settings."""


class ResultPrecision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records the coarsest precision in which its operations have added values.

    Operations on single elements round equally, whatever the shape: a cast to half precision does not count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: set[tuple[str, torch.dtype]] = set()

    def coarsest(self, device: torch.device) -> torch.dtype:
        """Return the coarsest precision, as a dtype; single precision if no operation was observed."""
        added = {(name, dtype) for name, dtype in self._seen if _ACCUMULATING.search(name)}
        dtypes = _of_floats(dtype for _, dtype in added)
        of_single = [name for name, dtype in added if dtype == torch.float32]
        for setting, names in _PRODUCTS.items():
            if any(map(names.search, of_single)):
                dtypes |= _of_products(device, setting)
        return max(dtypes, key=_rounding, default=torch.float32)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self._seen.add((func.overloadpacket.__name__, tensor.dtype))
        return result


def unobserved_precision(device: torch.device, operands: Iterable[Tensor]) -> torch.dtype:
    """Return the coarsest precision that compiled code may have used, by its operands and settings."""
    dtypes = _of_floats(tensor.dtype for tensor in operands)
    if torch.float32 in dtypes:
        dtypes |= {kind for setting in _PRODUCTS for kind in _of_products(device, setting)}
        if torch.is_autocast_enabled(device.type):
            dtypes.add(torch.get_autocast_dtype(device.type))
    return max(dtypes, key=_rounding, default=torch.float32)


def _of_floats(dtypes: Iterable[torch.dtype]) -> set[torch.dtype]:
    """Return the floating-point dtypes, those of the parts of complex ones included."""
    return {dtype.to_real() for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}


def _rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _of_products(device: torch.device, setting: str) -> set[torch.dtype]:
    """Return the coarser precision that a device uses for products in single precision, if there is one."""
    backends = torch.backends
    if device.type == "cpu":
        owner: Any = getattr(backends.mkldnn, setting, None)
    else:
        owner = backends.cuda.matmul if setting == "matmul" else getattr(backends.cudnn, setting, None)
    precision = getattr(owner, "fp32_precision", None)
    if precision is None and device.type == "cuda":  # torch before 2.9
        is_allowed = backends.cuda.matmul.allow_tf32 if setting == "matmul" else backends.cudnn.allow_tf32
        precision = "tf32" if is_allowed else "ieee"
    if precision is None:
        medium = setting == "matmul" and torch.get_float32_matmul_precision() == "medium"
        precision = "bf16" if medium else "ieee"
    return {kind for name, kind in (("tf32", _TF32), ("bf16", torch.bfloat16)) if precision == name}


def close(
    result: Tensor, expected: Tensor, *, scale: float = 0.0, precision: torch.dtype | None = None
) -> bool:
    """Return whether two tensors are equal but for rounding.

    Args:
        result: the result of a split call.
        expected: that of the unsplit call, of any shape.
        scale: the largest value of the operands, which may cancel. It counts for single and double precision
            only: half of an image's 255 would be a tolerance of whole units. That of a mask counts in part.
        precision: the coarsest precision in which they were computed; None for their own.
    """
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if not result.numel():
        return True
    if not (result.is_floating_point() or result.is_complex()):
        return torch.equal(result, expected)
    relative, least = _tolerances(result, expected, scale, precision)
    return torch.allclose(result.detach(), expected.detach(), rtol=relative, atol=least, equal_nan=True)


def _tolerances(
    result: Tensor, expected: Tensor, scale: float, precision: torch.dtype | None
) -> tuple[float, float]:
    """Return the relative and the absolute tolerance of `close`."""
    precise = result.dtype.to_real()
    coarsest = precise if precision is None else max(precise, precision, key=_rounding)
    relative, of_scale = (table.get(coarsest, _COARSER) for table in (_RELATIVE, _OF_SCALE))
    is_half = _rounding(coarsest) > torch.finfo(torch.float32).eps
    size = _size(expected)
    return relative, max(
        relative * size, of_scale * (size if is_half else min(scale, _LARGER * max(size, 1)))
    )


def _size(expected: Tensor) -> float:
    """Return the largest absolute value of a result, without one that fills masked elements."""
    size, absolute = largest(expected), expected.detach().abs()
    if int((absolute == size).sum()) < 2:  # a single element is computed
        return size
    unfilled = largest(absolute[absolute < size])
    return unfilled if 0 < unfilled * _FILLED < size else size


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two tensors of one shape."""

    distance: float
    """The largest difference of two elements."""
    tolerance: float
    """The difference up to which rounding explains it."""

    def __str__(self) -> str:
        return f"{self.distance:.2g}; rounding explains {self.tolerance:.1g}"


def difference(
    result: Tensor, expected: Tensor, *, scale: float = 0.0, precision: torch.dtype | None = None
) -> Difference | None:
    """Return the difference of two tensors, see `close`; None if they have no numbers at equal places."""
    if result.shape != expected.shape or result.dtype != expected.dtype or not result.numel():
        return None
    if not (result.is_floating_point() or result.is_complex()):
        return None
    relative, least = _tolerances(result, expected, scale, precision)
    distance = (result.detach() - expected.detach()).abs().nan_to_num(float("inf")).max()
    return Difference(float(distance), least + relative * _size(expected))


def multiple(
    result: Tensor, expected: Tensor, *, scale: float = 0.0, precision: torch.dtype | None = None
) -> float | None:
    """Return the number by which `expected` times it is `result`, see `close`; None if there is none."""
    if result.shape != expected.shape or not (result.is_floating_point() and expected.is_floating_point()):
        return None
    squares = float(expected.detach().double().square().sum())
    if not squares or not math.isfinite(squares):
        return None
    factor = float((result.detach().double() * expected.detach().double()).sum()) / squares
    return factor if close(result, expected * factor, scale=scale, precision=precision) else None


def largest(*tensors: Tensor) -> float:
    """Return the largest finite absolute value of floating-point tensors; 0 if there is none."""
    maximum = 0.0
    for tensor in tensors:
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
            absolute = tensor.detach().abs()
            value = float(absolute.max())  # the usual case; a NaN is the maximum, too
            if not math.isfinite(value):
                finite = absolute[torch.isfinite(absolute)]
                value = float(finite.max()) if finite.numel() else 0.0
            maximum = max(maximum, value)
    return maximum


def differing_buffer(
    kept: Mapping[str, Tensor], whole: Mapping[str, Tensor], precision: torch.dtype | None
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
