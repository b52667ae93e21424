"""Collects the gradients of each shard of a step, and sets the gradients of the step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.parallel.gradients.bucket import dense_gradient, real


class Gradients:
    """The gradients of the trained parameters in a step.

    Sums have at least single precision and the strides of their parameter: later sums over a gradient then
    have one order, and fused optimizers ignore strides.
    """

    def __init__(self, model: nn.Module) -> None:
        self._all = dict(model.named_parameters())
        self._trained = {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}
        self._previous = {name: parameter.grad for name, parameter in self._all.items()}
        self._forms = [_sum_form(parameter) for parameter in self._trained.values()]
        self._versions: list[int] = []
        self.dtype = self._forms[0].dtype if self._forms else torch.float32  # the dtype of a sum

    def __len__(self) -> int:
        """Return the number of tensors that a shard contributes."""
        return len(self._trained)

    def begin(self) -> None:
        """Clear all gradients, before a shard."""
        for parameter in self._all.values():
            parameter.grad = None
        self._versions = [parameter._version for parameter in self._all.values()]  # noqa: SLF001 - no other name

    def take(self) -> tuple[list[bool], list[Tensor]]:
        """Return whether the shard has a gradient, for each parameter, and the gradients, zeros without one.

        Raises:
            UsageError: the shard has changed a parameter, or a gradient is sparse.
        """
        self._refuse_changed()
        used = [parameter.grad is not None for parameter in self._trained.values()]
        taken: list[Tensor] = []
        seen: set[int] = set()
        for (name, parameter), form in zip(self._trained.items(), self._forms, strict=True):
            grad = dense_gradient(name, parameter)
            if grad is None:
                taken.append(torch.zeros_like(form, device=parameter.device))
                continue
            memory = grad.untyped_storage().data_ptr()
            # Two gradients may share memory, such as those of two views of one sum.
            if grad.dtype is form.dtype and grad.stride() == form.stride() and memory not in seen:
                taken.append(grad.detach())
            else:
                taken.append(torch.empty_like(form, device=parameter.device).copy_(grad))
            seen.add(memory)
        return used, taken

    def put(self, used: Sequence[float], sums: Sequence[Tensor]) -> None:
        """Add sums to the parameters' gradients from before the step, as a backward does.

        Args:
            used: number of shards with a gradient, for each parameter.
            sums: the sums over all shards; overwritten.
        """
        for name, parameter in self._all.items():
            parameter.grad = self._previous[name]
        for (name, parameter), count, total in zip(self._trained.items(), used, sums, strict=True):
            if not count:
                continue
            if (previous := dense_gradient(name, parameter)) is not None:
                total.add_(previous)
            if total.dtype is parameter.dtype:
                parameter.grad = total
            else:
                parameter.grad = torch.empty_like(parameter)
                real(parameter.grad).copy_(total)

    def _refuse_changed(self) -> None:
        for (name, parameter), version in zip(self._all.items(), self._versions, strict=True):
            if parameter._version != version:  # noqa: SLF001
                raise UsageError(
                    f"{name} changed while a shard was computed, so the next shards of this worker begin "
                    "with other parameters. Step the optimizer after the loop over shards."
                )


def _sum_form(parameter: Tensor) -> Tensor:
    """Return a meta tensor with shape, strides and dtype of a sum of gradients."""
    numbers = real(parameter.detach())
    dtype = torch.promote_types(numbers.dtype, torch.float32)
    return torch.empty_like(numbers, dtype=dtype, device="meta")
