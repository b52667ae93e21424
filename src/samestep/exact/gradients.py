"""The gradients of a step's shards: each shard's are taken as they are, to be added to in place."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep.base.errors import UsageError
from samestep.replicas.bucket import dense_gradient, real


class Gradients:
    """The gradients of the parameters that are trained in a step.

    Sums are in single precision at least, and lie in memory as the parameter does: what is summed over one
    afterwards has one order then, and fused optimizers do not look at strides.

    Args:
        model: whose.
    """

    def __init__(self, model: nn.Module) -> None:
        self._all = dict(model.named_parameters())
        self._trained = {name: parameter for name, parameter in self._all.items() if parameter.requires_grad}
        self._earlier = {name: parameter.grad for name, parameter in self._all.items()}
        self._forms = [_form(parameter) for parameter in self._trained.values()]
        self._versions: list[int] = []
        self.dtype = self._forms[0].dtype if self._forms else torch.float32
        """Of a sum."""

    def __len__(self) -> int:
        """Return how many tensors a shard adds."""
        return len(self._trained)

    def begin(self) -> None:
        """Take away what gradients there are: a shard begins."""
        for parameter in self._all.values():
            parameter.grad = None
        self._versions = [parameter._version for parameter in self._all.values()]  # noqa: SLF001 - no other name

    def take(self) -> tuple[list[bool], list[Tensor]]:
        """Return which parameters the shard has gradients for, and these; zeros for the others.

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
            # Autograd may give two parameters one memory: to two views of one sum, say.
            if grad.dtype is form.dtype and grad.stride() == form.stride() and memory not in seen:
                taken.append(grad.detach())
            else:
                taken.append(torch.empty_like(form, device=parameter.device).copy_(grad))
            seen.add(memory)
        return used, taken

    def put(self, used: Sequence[float], sums: Sequence[Tensor]) -> None:
        """Add sums to the parameters' gradients before the step, as a backward does.

        Args:
            used: how many shards had one, by parameter.
            sums: over all shards; overwritten.

        Raises:
            UsageError: a gradient before the step is sparse.
        """
        for name, parameter in self._all.items():
            parameter.grad = self._earlier[name]
        for (name, parameter), count, total in zip(self._trained.items(), used, sums, strict=True):
            if not count:
                continue
            if (earlier := dense_gradient(name, parameter)) is not None:
                total.add_(earlier)
            if total.dtype is parameter.dtype:
                parameter.grad = total
            else:
                parameter.grad = torch.empty_like(parameter)
                real(parameter.grad).copy_(total)

    def _refuse_changed(self) -> None:
        for (name, parameter), version in zip(self._all.items(), self._versions, strict=True):
            if parameter._version != version:  # noqa: SLF001
                raise UsageError(
                    f"{name} changed while a shard was computed, so that the next shards would begin with "
                    "other parameters, on this worker only. Step the optimizer after the loop over shards, "
                    "which ends with the gradients of the global batch."
                )


def _form(parameter: Tensor) -> Tensor:
    """Return a tensor without memory that has the form of a sum of gradients."""
    numbers = real(parameter.detach())
    dtype = torch.promote_types(numbers.dtype, torch.float32)
    return torch.empty_like(numbers, dtype=dtype, device="meta")
