"""An exponential moving average of the weights, to be evaluated in their place."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from samestep.base.errors import CheckpointError

_HALF = (torch.float16, torch.bfloat16)


class Average:
    """An average over all steps so far, in which a step counts `decay` times as much as the one after it.

    It begins with the weights it is made from, and is float32 where they are of half precision, which
    could not hold what one step adds. Running statistics are averaged alike, because those of the last
    few batches belong to the last weights, not to the averaged ones; counters are copied.

    Source: Polyak, Juditsky, "Acceleration of stochastic approximation by averaging", 1992, in the
    exponential form that is usual for networks.

    Args:
        model: what is trained; not changed. Give it before hooks are attached to it, as they would be copied.
        decay: between 0, the last weights, and 1, the first.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._source = model
        self._weight = 1 - decay
        self.model = deepcopy(model).requires_grad_(requires_grad=False)
        """The module to evaluate, with the averaged weights."""
        _widen(self.model)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are; once per step of the optimizer. Waits for no device."""
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
        """Return the averages under the keys of the model."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: it belongs to another model.
        """
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"the averaged weights do not fit this model: {error}") from None


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield all that a model computes with, looked up anew: a module may replace its buffers."""
    yield from model.parameters()
    yield from model.buffers()


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _widen(model: nn.Module) -> None:
    """Make half-precision weights float32, and let the model go on taking the inputs it takes now."""
    if any(parameter.dtype in _HALF for parameter in model.parameters()):
        model.float()
        model.register_forward_pre_hook(_widen_inputs)


def _widen_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.float() if isinstance(one, Tensor) and one.dtype in _HALF else one for one in inputs)
