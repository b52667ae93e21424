"""Builds the optimizer over all parameters of a model.

Weight decay applies to all of them, including biases and batch norms, as with torch's defaults.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from samestep.training.settings.training_settings import Settings

_FUSED = ("cpu", "cuda", "mps", "xpu")
"""Devices on which torch has fused optimizers since 2.6."""


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Return the optimizer of `settings` over the parameters of `model`.

    It is fused where torch supports that correctly. Fused is torch's fastest form (``benchmarks/README.md``)
    and reads the loss scaler's overflow flag on the device, so that a skipped step needs no synchronization.
    It rounds slightly differently from the loop over parameters that is torch's default on a CPU.
    """
    parameters = list(model.parameters())
    fused = all(_can_be_fused(parameter, settings.optimizer) for parameter in parameters)
    form: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
    optimizer: Optimizer
    if settings.optimizer == "adamw":
        optimizer = AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay, **form)
    else:
        optimizer = SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            **form,
        )
        if settings.momentum:
            _zero_momentum(optimizer)
    optimizer.register_load_state_dict_post_hook(_match_memory_layout)
    return optimizer


def _can_be_fused(parameter: Tensor, optimizer: str) -> bool:
    """Return whether torch's fused kernel updates such a parameter correctly.

    On a CPU, fused SGD silently skips most elements of half-precision parameters
    (pytorch/pytorch#191763; seen in torch 2.13).
    """
    is_skipped = optimizer == "sgd" and parameter.device.type == "cpu" and parameter.element_size() < 4
    return parameter.device.type in _FUSED and not is_skipped


def _zero_momentum(optimizer: Optimizer) -> None:
    """Initialize every momentum buffer to 0, which leaves the first step as it is.

    Otherwise fused SGD allocates the buffers in its first step and does not fill them if that step is
    skipped for an overflow (seen in torch 2.13), so that the next step adds uninitialized memory.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _match_memory_layout(optimizer: Optimizer) -> None:
    """Convert loaded state to the memory layout of its parameter.

    A fused kernel ignores strides: it applies state that was saved channels-last to the wrong elements of
    contiguous weights, without an error.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
