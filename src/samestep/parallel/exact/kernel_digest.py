"""Computes digests of operations on fixed numbers, which differ if other kernels run.

The name and capability of a processor do not decide which kernels run: its libraries have settings, such as
``ONEDNN_MAX_CPU_ISA`` and ``MKL_CBWR``, and versions that cannot be read. So operations that sum over many
numbers run forward and backward, in sizes for which kernels were observed to give different bits. This takes
tens of milliseconds, once per process.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from samestep.parallel.exact.deterministic_kernels import deterministic
from samestep.parallel.weights_digest import weights_sha256

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_DIGITS = 12

_Operation: TypeAlias = Callable[[torch.device, torch.dtype], dict[str, Tensor]]


def probe(device: torch.device) -> dict[str, str]:
    """Return digests of operations on fixed numbers, by name, for the current number of threads.

    Args:
        device: the device that computes.
    """
    return dict(_probed(device, torch.get_num_threads()))


@lru_cache
def _probed(device: torch.device, threads: int) -> dict[str, str]:  # noqa: ARG001 - the cache key
    made = {}
    with deterministic(device), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for kind, operation in _OPERATIONS.items():
            for name, dtype in _TYPES.items():
                made[f"{kind} in {name}"] = _digest(operation, device, dtype)
    return made


def _digest(operation: _Operation, device: torch.device, dtype: torch.dtype) -> str:
    try:
        return weights_sha256(operation(device, dtype))[:_DIGITS]
    except RuntimeError:  # the device has no kernel of this dtype
        return "none"


def _convolution(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    images, first = _numbers((8, 1, 8, 8), device, dtype), _numbers((16, 1, 5, 5), device, dtype)
    second = _numbers((32, 16, 3, 3), device, dtype)
    hidden = functional.conv2d(images, first, padding=2)
    return _both_ways(functional.conv2d(hidden, second, padding=1), images, first, second)


def _matrix_product(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    rows, weight = _numbers((24, 200), device, dtype), _numbers((96, 200), device, dtype)
    bias = _numbers((96,), device, dtype)
    return _both_ways(functional.linear(rows, weight, bias), rows, weight, bias)


def _batch_norm(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    images = _numbers((8, 16, 8, 8), device, dtype)
    weight, bias = (_numbers((16,), device, torch.float32) for _ in range(2))  # as in mixed precision
    return _both_ways(
        functional.batch_norm(images, None, None, weight, bias, training=True), images, weight, bias
    )


_OPERATIONS: dict[str, _Operation] = {
    "a convolution": _convolution,
    "a matrix product": _matrix_product,
    "a batch norm": _batch_norm,
}


def _both_ways(output: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
    """Return the output, and the gradients of the inputs."""
    weights = _numbers(output.shape, output.device, output.dtype)
    # Of a scalar: for any other shape, torch imports sympy to compare output and gradient.
    gradients = torch.autograd.grad((output * weights).sum(), inputs)
    return {"output": output, **{str(place): grad for place, grad in enumerate(gradients)}}


def _numbers(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return fractions whose sums are rounded; they need no generator, whose kernels may differ too."""
    whole = torch.arange(math.prod(shape), device="cpu") * 7919 % 1009
    return ((whole - 504) / 505).view(shape).to(device, dtype).requires_grad_()
