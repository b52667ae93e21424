"""Averages sparse gradients, such as those of ``nn.Embedding(sparse=True)``.

A sparse gradient has the rows that a rank's samples use, and so another size on every rank. It fits into no
bucket: the ranks gather each other's rows, and the average has the rows of all of them, as the gradient of
the whole batch has. An optimizer for sparse gradients updates these rows only.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from samestep.ranks.world.protocol import World


def sparse_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model that get sparse gradients, by name."""
    return {
        f"{name}.weight" if name else "weight": module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


def average_sparse(world: World, parameters: Mapping[str, Tensor]) -> None:
    """Replace the gradients of all these parameters by their averages over the ranks, with equal bits.

    An average is dense if any rank's gradient is, as that of an embedding whose weight is also used in
    another layer.
    """
    own = [None if parameter.grad is None else parameter.grad.cpu() for parameter in parameters.values()]
    every = world.all_gather_objects([_parts(grad) for grad in own])
    for parameter, parts in zip(parameters.values(), zip(*every, strict=True), strict=True):
        found = [_gradient(one, parameter) for one in parts if one is not None]
        if found:
            parameter.grad = _sum(found).div_(world.place.size).to(parameter.device)


def _parts(grad: Tensor | None) -> tuple[Tensor, ...] | None:
    """Return the rows of a sparse gradient and their indices, or a dense gradient alone."""
    if grad is None or grad.layout is torch.strided:
        return None if grad is None else (grad,)
    coalesced = grad.coalesce()
    return coalesced.values(), coalesced.indices()


def _gradient(parts: tuple[Tensor, ...], parameter: Tensor) -> Tensor:
    """Return the gradient that `_parts` has taken apart."""
    values, *indices = parts
    return (
        torch.sparse_coo_tensor(indices[0], values, parameter.shape, check_invariants=False)
        if indices
        else values
    )


def _sum(gradients: list[Tensor]) -> Tensor:
    """Return the sum of gradients, which has the rows of all of them if all are sparse."""
    if any(one.layout is torch.strided for one in gradients):
        return torch.stack([one.to_dense() for one in gradients]).sum(0)
    indices = torch.cat([one._indices() for one in gradients], dim=1)  # noqa: SLF001 - not coalesced
    values = torch.cat([one._values() for one in gradients])  # noqa: SLF001
    return torch.sparse_coo_tensor(indices, values, gradients[0].shape, check_invariants=False).coalesce()
