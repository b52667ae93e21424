"""Describes and compares the hardware, libraries and torch settings that decide the bits of a training.

The name and capability of a processor do not decide which kernels run: its libraries have settings, such as
``ONEDNN_MAX_CPU_ISA`` and ``MKL_CBWR``, and versions that cannot be read. So operations that sum over many
numbers run forward and backward, in sizes for which kernels were observed to give different bits. This takes
tens of milliseconds, once per process.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.backends import cudnn
from torch.nn import functional

from samestep.base.errors import CheckpointError, OutOfStep
from samestep.base.machine.description import processor
from samestep.parallel.gradients.agreement import weights_sha256
from samestep.ranks.world.protocol import World

_PRECISION_KINDS = (
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
        return tuple(read(*operation) for operation in _PRECISION_KINDS)
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32


def set_precisions(precisions: tuple[Any, ...]) -> None:
    """Set the precisions that `float32_precisions` has returned."""
    if not _HAS_EACH:
        torch.set_float32_matmul_precision(precisions[0])
        torch._C._set_cudnn_allow_tf32(precisions[1])  # noqa: SLF001 - what the property of cudnn calls
        return
    for operation, precision in zip(_PRECISION_KINDS, precisions, strict=True):
        torch._C._set_fp32_precision_setter(*operation, precision)  # noqa: SLF001


_BITS = "the bits of "
_LIBRARIES = (
    "If the processor is the same, a setting of its libraries differs, such as ONEDNN_MAX_CPU_ISA or "
    "MKL_CBWR, or their version."
)


def identity(device: torch.device) -> dict[str, str]:
    """Return the properties that decide the bits of operations on this machine, and digests of such bits."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "threads": str(torch.get_num_threads()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "settings of torch": _settings(),
        "device": kind,
        "processor": processor(),
        **{f"{_BITS}{name}": digest for name, digest in probe(device).items()},
    }


def _settings() -> str:
    """Return settings of torch that change the bits of operations, and that a program may have changed."""
    # Half the smallest normal number is 0 if denormals are flushed.
    denormal = (torch.full((1,), torch.finfo(torch.float32).tiny, device="cpu") / 2).item()
    settings = {
        "precisions": " ".join(map(str, float32_precisions())),
        "mkldnn": torch.backends.mkldnn.enabled,
        "denormals": "kept" if denormal else "flushed",
        "default dtype": str(torch.get_default_dtype()),
    }
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def check_same_environment(world: World) -> None:
    """Check that all ranks compute the same bits; all ranks call this.

    Raises:
        OutOfStep: a property differs; the message names it and the rank.
    """
    rows = world.all_gather_objects(identity(world.device))
    for rank, row in enumerate(rows):
        if difference := _difference(rows[0], row):
            name, first, here = difference
            hint = _LIBRARIES if name.startswith(_BITS) else "Use equal machines, and the same --threads."
            raise OutOfStep(
                f"--exact: {name} is {first} on rank 0 and {here} on rank {rank}, which gives other bits. "
                f"{hint}"
            )


def check_resumable(begun: dict[str, str], device: torch.device) -> list[str]:
    """Check that a resumed training computes the same bits as before.

    Args:
        begun: the identity at the start of the run.
        device: the device of the resumed run.

    Returns:
        the names of properties that the version of the checkpoint did not store; they are not compared.

    Raises:
        CheckpointError: a property differs; the message names it.
    """
    here = identity(device)
    if difference := _difference(begun, {name: value for name, value in here.items() if name in begun}):
        name, before, now = difference
        hint = "Resume on the same machine."
        if name == "threads":
            hint = f"Resume with --threads {before}."
        elif name.startswith(_BITS):
            hint += f" {_LIBRARIES}"
        raise CheckpointError(
            f"--exact: {name} was {before} when the run began and is {now} now, which gives other bits. "
            f"{hint}"
        )
    return [name for name in here if name not in begun]


def _difference(first: dict[str, str], here: dict[str, str]) -> tuple[str, str, str] | None:
    return next(
        ((name, first.get(name, "none"), here[name]) for name in here if first.get(name) != here[name]), None
    )


_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_DIGEST_DIGITS = 12  # 48 bits, enough to tell kernels apart
_Operation: TypeAlias = Callable[[torch.device, torch.dtype], dict[str, Tensor]]


def probe(device: torch.device) -> dict[str, str]:
    """Return digests of operations on fixed numbers, by name, for the current number of threads."""
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
        return weights_sha256(operation(device, dtype))[:_DIGEST_DIGITS]
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


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Make a GPU's libraries use deterministic algorithms inside a block; CPU algorithms always are."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
