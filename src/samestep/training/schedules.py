"""How the learning rate goes: each schedule is a pure function of the number of steps taken.

Every factor below multiplies ``lr``; the product of two of them is the schedule::

    warm-up     (step + 1) / (w + 1) up to step w, then 1

    constant    1
    step        gamma ** (step // d)                        a drop every d steps
    multistep   gamma ** (milestones at or before step)
    cosine      (1 + cos(pi * t)) / 2                       t from 0 after the warm-up to 1 at the end
    one-cycle   from 1/25 up to 1 in 3/10 of the steps, then down to 1/250000; both are half a cosine

Epochs of drops count from the start of the training, warm-up included. The rate is a function of the step
alone, not of the rate before: a resumed run has the bits of the undisturbed one, and no rounding adds up.

One-cycle has the proportions of torch's ``OneCycleLR``, but leaves the momentum as the settings say.

Sources: warm-up: Goyal et al., "Accurate, large minibatch SGD", 2017 (arXiv:1706.02677). Cosine: Loshchilov,
Hutter, "SGDR", 2017 (arXiv:1608.03983). One-cycle: Smith, Topin, "Super-convergence", 2018
(arXiv:1708.07120).
"""

from bisect import bisect_right
from collections.abc import Callable
from math import cos, pi
from typing import TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from samestep.training.settings import Settings

Factor: TypeAlias = Callable[[int], float]
"""What multiplies the learning rate of a step; the first step is 0."""

_RISE = 0.3  # the part of one-cycle's steps in which the rate rises
_FIRST, _LAST = 1 / 25, 1 / 25e4  # its factors at both ends


def build_schedule(optimizer: Optimizer, settings: Settings, *, steps_per_epoch: int) -> LRScheduler | None:
    """Return the schedule, to be stepped once per global batch; None where the rate is constant.

    The optimizer has the rate of the first step from here on.
    """
    if settings.schedule == "constant" and not settings.warmup:
        return None
    return LambdaLR(optimizer, factor_of(settings, steps_per_epoch=steps_per_epoch))


def factor_of(settings: Settings, *, steps_per_epoch: int) -> Factor:
    """Return what the schedule multiplies ``lr`` by, step for step."""

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
    """Multiply by `gamma` after every so many steps."""
    return lambda step: gamma ** (step // steps)


def drop_at(milestones: list[int], gamma: float) -> Factor:
    """Multiply by `gamma` at each of the `milestones`, steps in rising order."""
    return lambda step: gamma ** bisect_right(milestones, step)


def cosine(*, begin: int, end: int) -> Factor:
    """Fall from 1 at step `begin` to 0 at step `end`, the first that is not taken any more."""
    left = max(1, end - begin)
    return lambda step: _between(1.0, 0.0, (step - begin) / left)


def one_cycle(total: int) -> Factor:
    """Rise and fall once in `total` steps; the last of them has the lowest rate."""
    peak = _RISE * total - 1  # negative for three steps or fewer: the rate falls from the first

    def factor(step: int) -> float:
        if step <= peak:
            return _between(_FIRST, 1.0, step / peak)
        return _between(1.0, _LAST, (step - peak) / (total - 1 - peak))

    return factor


def _between(start: float, end: float, part: float) -> float:
    """Go from `start` to `end` along half a cosine as `part` goes from 0 to 1; stay there outside."""
    return end + (start - end) * (1 + cos(pi * min(max(part, 0.0), 1.0))) / 2
