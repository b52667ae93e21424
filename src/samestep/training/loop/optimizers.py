"""Builds the optimizer over all parameters of a model, and the schedule of its learning rate.

Weight decay applies to all parameters, including biases and batch norms, as with torch's defaults.

The learning rate of a step is a pure function of the number of steps taken, not of the previous rate, so a
resumed run has the same bits as an uninterrupted one. It is ``lr`` times the warm-up factor times one of the
other factors::

    warm-up     (step + 1) / (w + 1) up to step w, then 1

    constant    1
    step        gamma ** (step // d)                        a drop every d steps
    multistep   gamma ** (milestones at or before step)
    cosine      (1 + cos(pi * t)) / 2                       t from 0 after the warm-up to 1 at the end
    one-cycle   from 1/25 up to 1 in 3/10 of the steps, then down to 1/250000; both are half a cosine

Epochs of drops count from the start of the training, including warm-up. One-cycle has the proportions of
torch's ``OneCycleLR``, but does not change the momentum.

Sources: warm-up: Goyal et al., "Accurate, large minibatch SGD", 2017 (arXiv:1706.02677). Cosine: Loshchilov,
Hutter, "SGDR", 2017 (arXiv:1608.03983). One-cycle: Smith, Topin, "Super-convergence", 2018
(arXiv:1708.07120).
"""

from bisect import bisect_right
from collections.abc import Callable
from math import cos, pi
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from samestep.training.settings import Settings

_FUSED = ("cpu", "cuda", "mps", "xpu")  # devices on which torch has fused optimizers since 2.6


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


Factor: TypeAlias = Callable[[int], float]
"""Maps a step, the first being 0, to the factor on the learning rate."""

_RISE = 0.3  # fraction of one-cycle's steps in which the rate rises
_FIRST, _LAST = 1 / 25, 1 / 25e4  # factors of one-cycle's first and last step


def build_schedule(optimizer: Optimizer, settings: Settings, *, steps_per_epoch: int) -> LRScheduler | None:
    """Return the schedule, to be stepped once per global batch; None for a constant rate.

    Sets the optimizer's rate to that of the first step.
    """
    if settings.schedule == "constant" and not settings.warmup:
        return None
    return LambdaLR(optimizer, factor_of(settings, steps_per_epoch=steps_per_epoch))


def factor_of(settings: Settings, *, steps_per_epoch: int) -> Factor:
    """Return the schedule's factor on ``lr`` as a function of the step."""

    def steps(epochs: float) -> int:
        return round(epochs * steps_per_epoch)

    total, warm = steps(settings.epochs), steps(settings.warmup)
    schedules: dict[str, Callable[[], Factor]] = {
        "constant": lambda: lambda _: 1.0,
        "step": lambda: drop_every(max(1, steps(settings.step_epochs)), settings.gamma),
        "multistep": lambda: drop_at([steps(epochs) for epochs in settings.milestones], settings.gamma),
        "cosine": lambda: cosine(begin=warm, end=total),
        "one-cycle": lambda: one_cycle(total),
    }
    decay = schedules[settings.schedule]()
    return lambda step: min(1.0, (step + 1) / (warm + 1)) * decay(step)


def drop_every(steps: int, gamma: float) -> Factor:
    """Multiply by `gamma` every `steps` steps."""
    return lambda step: gamma ** (step // steps)


def drop_at(milestones: list[int], gamma: float) -> Factor:
    """Multiply by `gamma` at each of the `milestones`, which are steps in ascending order."""
    return lambda step: gamma ** bisect_right(milestones, step)


def cosine(*, begin: int, end: int) -> Factor:
    """Fall from 1 at step `begin` to 0 at step `end`, the first one after the training."""
    left = max(1, end - begin)
    return lambda step: _between(1.0, 0.0, (step - begin) / left)


def one_cycle(total: int) -> Factor:
    """Rise and fall once in `total` steps; the last step has the lowest rate."""
    peak = _RISE * total - 1  # negative for three steps or fewer: the rate only falls

    def factor(step: int) -> float:
        if step <= peak:
            return _between(_FIRST, 1.0, step / peak)
        return _between(1.0, _LAST, (step - peak) / (total - 1 - peak))

    return factor


def _between(start: float, end: float, part: float) -> float:
    """Return the value at `part`, clamped to 0 .. 1, of half a cosine from `start` to `end`."""
    return end + (start - end) * (1 + cos(pi * min(max(part, 0.0), 1.0))) / 2
