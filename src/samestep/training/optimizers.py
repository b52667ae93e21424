"""The optimizer over all parameters of a model.

Weight decay acts on all of them, biases and batch norms included, as in the tutorials' scripts and torch's
own defaults.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from samestep.training.settings import Settings

_FUSED = ("cpu", "cuda", "mps", "xpu")
"""Devices for which torch has one kernel per update from 2.6 on."""


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Return the optimizer of `settings` over the parameters of `model`.

    Fused where torch can, and rightly: the fastest of torch's forms (``benchmarks/README.md``), and one that
    takes a loss scaler's findings on the device, so that a step that is skipped costs no synchronisation.
    It rounds a little otherwise than the loop over parameters does that a script gets on a CPU by default.
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
            _start_at_rest(optimizer)
    optimizer.register_load_state_dict_post_hook(_lie_like_parameters)
    return optimizer


def _can_be_fused(parameter: Tensor, optimizer: str) -> bool:
    """Return whether torch's one kernel updates such a parameter.

    On a CPU, SGD's leaves most of the elements of half-precision parameters as they are, without a word
    (pytorch/pytorch#191763; seen in torch 2.13).
    """
    is_left_alone = optimizer == "sgd" and parameter.device.type == "cpu" and parameter.element_size() < 4
    return parameter.device.type in _FUSED and not is_left_alone


def _start_at_rest(optimizer: Optimizer) -> None:
    """Give every parameter a momentum of 0, from which the first step leads where it would without one.

    Left to itself, fused SGD allocates the buffers in its first step and does not fill them if that step
    is skipped for an overflow (seen in torch 2.13): the next one would add whatever was in memory.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _lie_like_parameters(optimizer: Optimizer) -> None:
    """Give loaded state the memory layout of its parameter.

    A fused kernel walks through memory and does not look at strides: state that was saved channels-last
    and is used with contiguous weights would silently belong to other elements.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
