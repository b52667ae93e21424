"""Builds and holds what a step changes: weights, their average, optimizer, schedule and loss scale."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from math import cos, pi
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.loop.precision import Precision
from samestep.training.settings import Settings

_FUSED = ("cpu", "cuda", "mps", "xpu")  # devices on which torch has fused optimizers since 2.6


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Return the optimizer of `settings` over all parameters of `model`, with weight decay on all of them.

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
    kept = {name: optimizer.defaults[name] for name in ("fused", "foreach")}
    optimizer.register_load_state_dict_post_hook(partial(_keep_form, kept))
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


def _keep_form(form: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Keep the form for this device: a loaded state has that of the device on which it was saved."""
    for group in optimizer.param_groups:
        group.update(form)


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
    """Return the schedule's factor on ``lr`` as a function of the number of steps taken.

    It is not a function of the previous rate, so a resumed run has the same bits as an uninterrupted one. It
    is the factor of the warm-up times that of the schedule::

        warm-up     (step + 1) / (w + 1) up to step w, then 1

        constant    1
        step        gamma ** (step // d)                        a drop every d steps
        multistep   gamma ** (milestones at or before step)
        cosine      (1 + cos(pi * t)) / 2                       t from 0 after the warm-up to 1 at the end
        one-cycle   from 1/25 up to 1 in 3/10 of the steps, then down to 1/250000; both are half a cosine

    Epochs of drops count from the start of the training, including warm-up. One-cycle has the proportions of
    torch's ``OneCycleLR``, but does not change the momentum.

    Sources: warm-up: Goyal et al., "Accurate, large minibatch SGD", 2017 (arXiv:1706.02677). Cosine:
    Loshchilov, Hutter, "SGDR", 2017 (arXiv:1608.03983). One-cycle: Smith, Topin, "Super-convergence", 2018
    (arXiv:1708.07120).
    """

    def steps(epochs: float) -> int:
        return round(epochs * steps_per_epoch)

    total, warm = steps(settings.epochs), steps(settings.warmup)
    gamma, drop = settings.gamma, max(1, steps(settings.step_epochs))
    milestones = [steps(epochs) for epochs in settings.milestones]
    schedules: dict[str, Factor] = {
        "constant": lambda _: 1.0,
        "step": lambda step: gamma ** (step // drop),
        "multistep": lambda step: gamma ** bisect_right(milestones, step),
        "cosine": lambda step: _between(1.0, 0.0, (step - warm) / max(1, total - warm)),
        "one-cycle": _one_cycle(total),
    }
    decay = schedules[settings.schedule]
    return lambda step: min(1.0, (step + 1) / (warm + 1)) * decay(step)


def _one_cycle(total: int) -> Factor:
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


def in_memory_format(model: nn.Module, settings: Settings) -> nn.Module:
    """Return `model`, converted in place to channels-last if `settings.channels_last`."""
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


_HALF = (torch.float16, torch.bfloat16)


class Average:
    """An average over all steps so far, in which a step has `decay` times the weight of the next one.

    It starts from the weights of `model`. Half-precision weights are averaged in float32, because half
    precision rounds away what one step adds. Running statistics are averaged as well, because those of the
    last batches belong to the last weights; counters are copied.

    Source: Polyak, Juditsky, "Acceleration of stochastic approximation by averaging", 1992, in the
    exponential form that is usual for networks.

    Args:
        model: the trained model; not changed. Pass it before hooks are attached, because it is copied.
        decay: 0 gives the last weights, 1 the first.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._source = model
        self._weight = 1 - decay
        self.model = deepcopy(model).requires_grad_(requires_grad=False)
        """The module with the averaged weights, for evaluation."""
        _widen(self.model)

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average, once per optimizer step; waits for no device."""
        pairs = list(zip(_tensors(self.model), _tensors(self._source), strict=True))
        averages = [pair for pair in pairs if _has_fractions(pair[0])]
        counters = [pair for pair in pairs if not _has_fractions(pair[0])]
        torch._foreach_lerp_(
            [average for average, _ in averages],
            [latest.to(average.dtype) for average, latest in averages],
            self._weight,
        )
        if counters:
            torch._foreach_copy_([kept for kept, _ in counters], [latest for _, latest in counters])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages under the model's keys."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the averages of `state`.

        Raises:
            CheckpointError: `state` belongs to another model.
        """
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"the averaged weights do not fit this model: {error}") from None


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield the current parameters and buffers: a module can replace its buffers."""
    yield from model.parameters()
    yield from model.buffers()


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _widen(model: nn.Module) -> None:
    """Convert half-precision weights to float32; the model still accepts half-precision inputs."""
    if any(parameter.dtype in _HALF for parameter in model.parameters()):
        model.float()
        model.register_forward_pre_hook(_widen_inputs)


def _widen_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value for value in inputs
    )


_generator = threading.Lock()  # ranks that are threads share the one generator of the process


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator within the block, and restore its state afterwards."""
    with _generator:
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


class Learner:
    """The objects that a step changes; equal on all ranks.

    The weights are drawn with the settings' seed on the CPU, because other devices draw other numbers. Losses
    are averaged over `workers` ranks.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        settings: Settings,
        *,
        device: torch.device,
        workers: int,
        steps_per_epoch: int,
    ) -> None:
        self.precision = Precision.of(settings.precision, device, workers=workers)
        with seeded(settings.seed):
            model = make_model()
        self.model = in_memory_format(model.to(device=device, dtype=self.precision.weights), settings)
        self.average = Average(self.model, settings.ema) if settings.ema else None
        self.optimizer = build_optimizer(self.model, settings)
        self.schedule = build_schedule(self.optimizer, settings, steps_per_epoch=steps_per_epoch)

    @property
    def evaluated(self) -> nn.Module:
        """The model to evaluate: the averaged one if there is an average."""
        return self.model if self.average is None else self.average.model

    def optimization_state(self) -> dict[str, Any]:
        """Return the state of optimizer, schedule and loss scale."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": {} if self.schedule is None else self.schedule.state_dict(),
            "scaler": self.precision.state_dict(),
        }

    def load(self, snapshot: Snapshot) -> None:
        """Load the state of `snapshot`.

        Raises:
            CheckpointError: it belongs to another model or other settings.
            Exception: torch refuses a state.
        """
        snapshot.check_fits(self.model)
        rest = snapshot.optimizer
        if missing := sorted({"optimizer", "schedule", "scaler"} - set(rest)):
            raise CheckpointError(
                f"the checkpoint has weights but no {', '.join(missing)}, so that no training can resume "
                "from it. Evaluate it with --eval-only --from."
            )
        if (snapshot.average is None) != (self.average is None):
            raise CheckpointError(
                "the checkpoint and the settings differ in --ema (average of the weights). Use the --ema of "
                "the run that wrote it."
            )
        self.precision.load_state_dict(rest["scaler"])
        self.model.load_state_dict(dict(snapshot.model))
        self.optimizer.load_state_dict(rest["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(rest["schedule"])
        if self.average is not None and snapshot.average is not None:
            self.average.load_state_dict(snapshot.average)
