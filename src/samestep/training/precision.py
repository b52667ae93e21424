"""Precision: which numbers the weights, the inputs and the arithmetic are made of."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from samestep.base.errors import CheckpointError, UsageError

_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # the last one is Arm's
_FIRST_SCALE = 2.0**16  # torch's own


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What one name means."""

    weights: torch.dtype
    products: torch.dtype | None = None
    """In which convolutions and matrix products are taken, where not in that of the weights."""


_NUMBERS = {
    "fp32": _Numbers(torch.float32),
    "bf16": _Numbers(torch.float32, products=torch.bfloat16),
    "fp16": _Numbers(torch.float32, products=torch.float16),
    "bf16-true": _Numbers(torch.bfloat16),
    "fp64": _Numbers(torch.float64),
}


class Precision:
    """How a training computes on one device; made by `Precision.of`.

    The step always goes through `scaler`, which passes everything on unchanged unless the precision is fp16:
    ``scale(loss).backward()``, ``unscale_(optimizer)`` before gradients are looked at, ``step(optimizer)``,
    ``update()``. The scaler looks for overflow in the exchanged gradients, so all ranks find the same, skip
    the same steps and keep equal scales. With a fused optimizer none of that waits for the device.

    A sample of a rank's share counts `workers` times as much in that rank's loss as in the serial one, so the
    scale is as many times smaller: what overflows is what would overflow on one worker.
    """

    def __init__(self, numbers: _Numbers, device: torch.device, workers: int) -> None:
        self.weights = numbers.weights
        """Dtype of the parameters."""
        self.images = numbers.weights
        """Dtype of the inputs; autocast casts them on its own, once they are normalised."""
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=_FIRST_SCALE / workers, enabled=numbers.products is torch.float16
        )
        self._numbers = numbers
        self._device = device
        self._workers = workers

    @classmethod
    def of(cls, name: str, device: torch.device, *, workers: int = 1) -> "Precision":
        """Return the precision called `name` on `device`, with a fresh loss scaler.

        Args:
            name: as in `Settings.precision`; ``auto`` is bf16 where it is fast, else fp32.
            device: where the model is.
            workers: how many share a batch.

        Raises:
            UsageError: this device, or this build of torch, cannot compute so.
        """
        if name == "auto":
            name = "bf16" if machine_has_bf16(device) else "fp32"
        refusal = _refusal(_NUMBERS[name], device)
        if refusal is not None:
            raise UsageError(
                f"--precision {name} does not work on {device} with torch {torch.__version__}: {refusal} "
                "Use --precision fp32."
            )
        return cls(_NUMBERS[name], device, workers)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the model computes; the loss is taken outside."""
        return _autocast(self._numbers, self._device)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler, as one worker would have it; empty where nothing is scaled."""
        state = self.scaler.state_dict()
        return {**state, "scale": state["scale"] * self._workers} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, at any number of workers.

        Raises:
            CheckpointError: it was saved in a precision that scales otherwise.
        """
        if self.scaler.is_enabled() != bool(state):
            raise CheckpointError(
                f"the checkpoint has {'a' if state else 'no'} loss scale: "
                "it belongs to a training in another --precision."
            )
        if state:
            self.scaler.load_state_dict({**state, "scale": state["scale"] / self._workers})


def machine_has_bf16(device: torch.device, *, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether bf16 is faster than fp32 on `device`, because it has instructions for it.

    Args:
        device: of a GPU or the CPU; others are not known, and said to have none.
        cpuinfo: where the kernel describes the processor; without it none is assumed to have bf16.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and not _BF16_FLAGS.isdisjoint(_cpu_flags(cpuinfo))


def _cpu_flags(cpuinfo: Path) -> set[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    named = (line.partition(":") for line in lines)
    return {
        flag for name, _, flags in named if name.strip() in ("flags", "Features") for flag in flags.split()
    }


def _autocast(numbers: _Numbers, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if numbers.products is None else torch.autocast(device.type, dtype=numbers.products)


@cache
def _refusal(numbers: _Numbers, device: torch.device) -> str | None:
    """Return why a convolution and a product cannot be trained so, in torch's words, or None if they can.

    Trying is the only way to know: it depends on the device, the driver and what torch was built with.
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
