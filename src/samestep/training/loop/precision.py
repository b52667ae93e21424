"""Selects the dtypes of weights, inputs and arithmetic, and scales the loss for fp16."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from samestep.base.errors import CheckpointError, UsageError
from samestep.base.machine.kernel_files import text_of

_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # the last one is Arm's
_FIRST_SCALE = 2.0**16  # torch's own


@dataclass(frozen=True, slots=True)
class _Dtypes:
    """The dtypes of one precision."""

    weights: torch.dtype
    products: torch.dtype | None = None
    """Autocast dtype of convolutions and matrix products; None is that of the weights."""


_DTYPES = {
    "fp32": _Dtypes(torch.float32),
    "bf16": _Dtypes(torch.float32, products=torch.bfloat16),
    "fp16": _Dtypes(torch.float32, products=torch.float16),
    "bf16-true": _Dtypes(torch.bfloat16),
    "fp16-true": _Dtypes(torch.float16),
    "fp64": _Dtypes(torch.float64),
}


class Precision:
    """The precision of a training on one device; constructed by `Precision.of`.

    Every step uses `scaler`, which does nothing unless the precision is fp16: ``scale(loss).backward()``,
    ``unscale_(optimizer)`` before gradients are read, ``step(optimizer)``, ``update()``. The scaler checks
    the averaged gradients for overflow, so all ranks skip the same steps and keep equal scales. With a fused
    optimizer none of that waits for the device.

    A local sample has `workers` times the weight in its rank's loss that it has in the serial loss. The
    scale is smaller by the same factor, so that the same values overflow as on one worker.
    """

    def __init__(self, numbers: _Dtypes, device: torch.device, workers: int) -> None:
        self.weights = numbers.weights  # dtype of the parameters
        self.images = numbers.weights  # dtype of the inputs; autocast casts them after normalization
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=_FIRST_SCALE / workers, enabled=numbers.products is torch.float16
        )
        self._numbers = numbers
        self._device = device
        self._workers = workers

    @classmethod
    def of(cls, name: str, device: torch.device, *, workers: int = 1) -> "Precision":
        """Return the precision called `name` on `device`, with a fresh loss scaler.

        The precision ``auto`` is bf16 where it is fast, else fp32. A batch is split across `workers` ranks.

        Raises:
            UsageError: this device, or this build of torch, does not support the precision.
        """
        if name == "auto":
            name = "bf16" if machine_has_bf16(device) else "fp32"
        refusal = _refusal(_DTYPES[name], device)
        if refusal is not None:
            raise UsageError(
                f"--precision {name} does not work on {device} with torch {torch.__version__}: {refusal} "
                "Use --precision fp32."
            )
        return cls(_DTYPES[name], device, workers)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of the model's forward; the loss is computed outside of it."""
        return _autocast(self._numbers, self._device)

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state with the scale of one worker; empty without loss scaling."""
        state = self.scaler.state_dict()
        return {**state, "scale": state["scale"] * self._workers} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load `state`, with any number of workers.

        Raises:
            CheckpointError: only one of `state` and this precision has a loss scale.
        """
        if self.scaler.is_enabled() != bool(state):
            raise CheckpointError(
                f"the checkpoint has {'a' if state else 'no'} loss scale: it belongs to a run with another "
                "--precision."
            )
        if state:
            self.scaler.load_state_dict({**state, "scale": state["scale"] / self._workers})


def machine_has_bf16(device: torch.device, *, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether `device` has bf16 instructions, which make bf16 faster than fp32.

    It is false for other devices than a GPU or the CPU, and for a CPU without the kernel's description,
    `cpuinfo`.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and not _BF16_FLAGS.isdisjoint(_cpu_flags(cpuinfo))


def _cpu_flags(cpuinfo: Path) -> set[str]:
    named = (line.partition(":") for line in text_of(cpuinfo).splitlines())
    return {
        flag for name, _, flags in named if name.strip() in ("flags", "Features") for flag in flags.split()
    }


def _autocast(numbers: _Dtypes, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if numbers.products is None else torch.autocast(device.type, dtype=numbers.products)


@cache
def _refusal(numbers: _Dtypes, device: torch.device) -> str | None:
    """Run a small forward and backward; return torch's error message if they fail, else None.

    Support depends on the device, the driver and the build of torch, and only a run shows it.
    """
    try:
        images = torch.zeros(2, 3, 4, 4, dtype=numbers.weights, device=device)
        kernels = torch.zeros(4, 3, 3, 3, dtype=numbers.weights, device=device, requires_grad=True)
        matrix = torch.zeros(2, 16, dtype=numbers.weights, device=device, requires_grad=True)
        with _autocast(numbers, device):
            scores = F.linear(F.conv2d(images, kernels).flatten(1), matrix)
        scores.float().sum().backward()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError, TypeError) as error:
        return f"{(str(error) or repr(error)).splitlines()[0].rstrip('.')}."
    return None
