"""Holds what a step changes: weights, their average, optimizer, schedule and loss scale."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint.snapshot import Snapshot
from samestep.training.loop.compiling import in_memory_format
from samestep.training.loop.optimizers import build_optimizer, build_schedule
from samestep.training.loop.precision import Precision
from samestep.training.settings import Settings

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
    return tuple(one.float() if isinstance(one, Tensor) and one.dtype in _HALF else one for one in inputs)


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
