"""Computes an exponential moving average of a model's weights, for evaluation."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from samestep.base.errors import CheckpointError

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
