"""Carries the modes of torch that surround a call to the helpers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.backends import cudnn

from samestep.autopilot.state.reachable_state import modules_of
from samestep.parallel.exact.identity import float32_precisions, set_precisions


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
    deterministic: tuple[bool, bool]
    precisions: tuple[Any, ...]
    """See `float32_precisions`."""
    cudnn: tuple[bool, bool]
    """Whether cuDNN tries several kernels, and uses deterministic ones only."""

    @classmethod
    def now(cls, module: nn.Module, device: torch.device) -> "Surroundings":
        """Return the present modes."""
        kinds = dict.fromkeys(("cpu", device.type))
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(one.training for one in modules_of(module)),
            tuple(
                Autocast(one, torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in kinds
            ),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            float32_precisions(),
            (cudnn.benchmark, cudnn.deterministic),
        )

    def set(self, module: nn.Module) -> None:
        """Set the modes of the module and the process, but none of those that are bound to a block."""
        for part, is_training in zip(modules_of(module), self.training, strict=True):
            part.training = is_training
        if torch.get_default_dtype() != self.default_dtype:
            torch.set_default_dtype(self.default_dtype)
        if float32_precisions() != self.precisions:
            set_precisions(self.precisions)
        if (cudnn.benchmark, cudnn.deterministic) != self.cudnn:
            torch._C._set_cudnn_benchmark(self.cudnn[0])  # noqa: SLF001 - what the properties of cudnn call
            torch._C._set_cudnn_deterministic(self.cudnn[1])  # noqa: SLF001
        is_on, warns = self.deterministic
        if torch.are_deterministic_algorithms_enabled() != is_on:
            torch.use_deterministic_algorithms(is_on, warn_only=warns)

    @contextmanager
    def entered(self, module: nn.Module) -> Iterator[None]:
        """Set these modes in the block; those of the process and of the module stay set."""
        self.set(module)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for one in self.autocast:
                if torch.is_autocast_enabled(one.device) != one.is_enabled or one.is_enabled:
                    stack.enter_context(
                        torch.autocast(
                            one.device,
                            one.dtype,
                            enabled=one.is_enabled,
                            cache_enabled=self.caches_autocast,
                        )
                    )
            yield
