"""Carries the modes of torch that surround a call to the helpers."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.backends import cuda
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from samestep.autopilot.state.reachable_state import modules_of
from samestep.autopilot.state.saved_state import version_of
from samestep.hooks import declarations, module_parts
from samestep.hooks.registry import attached, wrapping
from samestep.parallel.exact.identity import float32_precisions, set_precisions

_PRIVATE = (
    *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "mkldnn_enabled", "mkldnn_deterministic"),
    *("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction"),
    *("cublas_allow_fp16_accumulation", "cpu_allow_fp16_reduced_precision_reduction"),
    *("math_sdp_allow_fp16_bf16_reduction", "deterministic_fill_uninitialized_memory"),
)
"""Names in `torch._C` of what the properties of `torch.backends` read and set; older versions lack some."""
_SDP = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")


def _flushes_denormals() -> bool:
    """Return whether this thread computes with 0 in place of denormal numbers; torch has no such function."""
    return sys.float_info.min / 2 == 0


_SWITCHES: Sequence[tuple[Callable[[], Any], Callable[..., Any]]] = (
    *(
        (getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}"))  # noqa: SLF001
        for name in _PRIVATE
        if hasattr(torch._C, f"_get_{name}")  # noqa: SLF001
    ),
    *((getattr(cuda, f"{name}_enabled"), getattr(cuda, f"enable_{name}")) for name in _SDP),
    (_flushes_denormals, torch.set_flush_denormal),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        torch.autograd.anomaly_mode.set_detect_anomaly,
    ),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda is_on, warns: torch.use_deterministic_algorithms(is_on, warn_only=warns),
    ),
)
"""Reads and sets each switch of the process that selects kernels: a kernel may draw numbers of its own.

What has several values is read as a tuple of them.
"""


@dataclass(frozen=True, slots=True)
class Autocast:
    """The autocast of one kind of device."""

    device: str
    is_enabled: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The modes in which a call is computed."""

    grad: bool
    inference: bool
    training: tuple[bool, ...]
    """The modes of the module and its submodules."""
    autocast: tuple[Autocast, ...]
    caches_autocast: bool
    default_dtype: torch.dtype
    precisions: tuple[Any, ...]
    """See `float32_precisions`."""
    switches: tuple[Any, ...]
    """See `_SWITCHES`."""
    default_device: str
    """The type of the device on which new tensors are, if a block or the script has selected one."""

    @classmethod
    def now(cls, module: nn.Module, device: torch.device) -> "Surroundings":
        """Return the present modes."""
        kinds = dict.fromkeys(("cpu", device.type))
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(part.training for part in modules_of(module)),
            tuple(
                Autocast(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in kinds
            ),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            float32_precisions(),
            tuple(read() for read, _ in _SWITCHES),
            _default_device(),
        )

    @property
    def of_process(self) -> "Surroundings":
        """All modes but those of modules: a forward may branch on each of them."""
        return replace(self, training=())

    def set(self, module: nn.Module) -> None:
        """Set the modes of the module and the process, but none of those that are bound to a block."""
        for part, is_training in zip(modules_of(module), self.training, strict=True):
            if part.training is not is_training:  # `nn.Module` takes long to set an attribute
                part.training = is_training
        if torch.get_default_dtype() != self.default_dtype:
            torch.set_default_dtype(self.default_dtype)
        if float32_precisions() != self.precisions:
            set_precisions(self.precisions)
        for (read, switch), value in zip(_SWITCHES, self.switches, strict=True):
            if read() != value:
                switch(*(value if isinstance(value, tuple) else (value,)))

    @contextmanager
    def entered(self, module: nn.Module) -> Iterator[None]:
        """Set these modes in the block; those of the process and of the module stay set."""
        self.set(module)
        with ExitStack() as stack:
            if self.default_device:
                stack.enter_context(torch.device(self.default_device))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for autocast in self.autocast:
                if torch.is_autocast_enabled(autocast.device) != autocast.is_enabled or autocast.is_enabled:
                    stack.enter_context(
                        torch.autocast(
                            autocast.device,
                            autocast.dtype,
                            enabled=autocast.is_enabled,
                            cache_enabled=self.caches_autocast,
                        )
                    )
            yield


class CastWeights:
    """The modules whose weights autocast has cast in the present block, with the versions of these weights.

    It keeps these casts until the outermost block ends, also of weights that a step changes in between. A
    helper has no such casts, and a check drops them.
    """

    def __init__(self) -> None:
        self._versions: WeakKeyDictionary[nn.Module, list[int | None]] = WeakKeyDictionary()

    def have_changed(self, module: nn.Module, modes: Surroundings) -> bool:
        """Return whether weights have changed since their cast; record those of a module that is called."""
        if not (modes.caches_autocast and any(autocast.is_enabled for autocast in modes.autocast)):
            return False
        self._versions.setdefault(module, _versions(module))
        return any(_versions(called) != versions for called, versions in self._versions.items())

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Forget the casts at the end of each outermost block of autocast."""

        def clear(original: Callable[[], None]) -> None:
            original()
            torch.autocast_increment_nesting()
            if torch.autocast_decrement_nesting() == 0:
                self._versions.clear()

        with attached(declarations.DROPPED_CASTS, wrapping(clear)):
            yield


def _versions(module: nn.Module) -> list[int | None]:
    """Return the versions of the weights that require a gradient: autocast keeps no other casts."""
    return [version_of(weight) for weight in module_parts.parameters(module) if weight.requires_grad]


def _default_device() -> str:
    modes: Sequence[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    devices = [mode.device.type for mode in modes if isinstance(mode, DeviceContext)]
    return devices[-1] if devices else ""
