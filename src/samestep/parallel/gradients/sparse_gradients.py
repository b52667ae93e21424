"""Averages sparse gradients, such as those of ``nn.Embedding(sparse=True)``.

A sparse gradient has the rows that a rank's samples use, and so another size on every rank. It fits into no
bucket: the ranks gather each other's rows, and the average has the rows of all of them, as the gradient of
the whole batch has. An optimizer for sparse gradients updates these rows only.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from samestep.hooks import module_parts
from samestep.ranks.world.protocol import World

_NONE, _DENSE = -1, -2
"""In place of the number of rows: no gradient, and a dense one."""


def sparse_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model that get sparse gradients, by name."""
    return {
        f"{name}.weight" if name else "weight": module.weight
        for name, module in module_parts.named_modules(model)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


def average_sparse(world: World, parameters: Mapping[str, Tensor]) -> None:
    """Replace the gradients of all these parameters by their averages over the ranks, with equal bits.

    An average is dense if any rank's gradient is, as that of an embedding whose weight is also used in
    another layer.
    """
    own = list(parameters.values())
    for parameter in own:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
    counts = torch.tensor([_num_rows(one.grad) for one in own], device=world.device)
    of_ranks = torch.stack(world.all_gather(counts)).T.tolist()
    for parameter, numbers in zip(own, of_ranks, strict=True):
        if _DENSE in numbers:
            _average_dense(world, parameter)
        elif max(numbers) > _NONE:
            _average_rows(world, parameter, [max(number, 0) for number in numbers])


def _num_rows(grad: Tensor | None) -> int:
    if grad is None:
        return _NONE
    return grad.indices().shape[1] if grad.is_sparse else _DENSE


def _average_dense(world: World, parameter: Tensor) -> None:
    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
    world.all_reduce(grad, op="mean")
    parameter.grad = grad


def _average_rows(world: World, parameter: Tensor, numbers: list[int]) -> None:
    """Average a gradient that is sparse on all ranks that have it; `numbers` has each rank's rows.

    Each row is sent behind its index. Both are exact in double precision.
    """
    message = torch.zeros(
        max(1, *numbers), 1 + parameter[0].numel(), dtype=torch.float64, device=world.device
    )
    if parameter.grad is not None:
        indices, values = parameter.grad.indices().T, parameter.grad.values()
        # Each by itself: together they would have the dtype of the values, which rounds large indices.
        message[: len(values), :1], message[: len(values), 1:] = indices, values.flatten(1)
    every = zip(world.all_gather(message), numbers, strict=True)
    rows = torch.cat([one[:number] for one, number in every])
    total = torch.sparse_coo_tensor(
        rows[:, 0].long()[None],
        rows[:, 1:].to(parameter.dtype).reshape(-1, *parameter.shape[1:]),
        parameter.shape,
        check_invariants=False,
    )
    parameter.grad = total.coalesce().div_(world.place.size)
