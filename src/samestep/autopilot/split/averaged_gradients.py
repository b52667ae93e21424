"""Averages the gradients that ranks compute of their slices.

The backward of a split call and the equivalence check call the same function: with a fault of it, the check
fails, and no call is split.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from samestep.parallel.gradients.initial_agreement import sparse_weights
from samestep.ranks.world.protocol import World


def sparse_places(module: nn.Module, weights: Sequence[Tensor]) -> frozenset[int]:
    """Return the places of the weights of a module that may get sparse gradients."""
    sparse = set(map(id, sparse_weights(module).values()))
    return frozenset(place for place, weight in enumerate(weights) if id(weight) in sparse)


def averages(
    world: World, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], sparse: frozenset[int]
) -> list[Tensor | None]:
    """Return the averages of gradients over the ranks; all ranks call this.

    Args:
        world: the ranks.
        weights: the weights.
        gradients: the gradient of each weight on this rank, of the weight's shape; None for zero.
        sparse: the places of weights that may get sparse gradients.

    Returns:
        the average for each weight; None where no rank has a gradient.
    """
    by_dtype: dict[torch.dtype, list[int]] = {}
    for place, weight in enumerate(weights):
        if place not in sparse:
            by_dtype.setdefault(weight.dtype, []).append(place)
    result: list[Tensor | None] = [None] * len(weights)
    for places in by_dtype.values():
        of_dtype = _in_one_message(
            world, [weights[place] for place in places], [gradients[place] for place in places]
        )
        for place, average in zip(places, of_dtype, strict=True):
            result[place] = average
    for place in sorted(sparse):
        result[place] = _of_rows(world, weights[place], gradients[place])
    return result


def _in_one_message(
    world: World, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the averages of dense gradients of one dtype."""
    parts = [
        (torch.zeros_like(weight) if gradient is None else gradient).reshape(-1)
        for weight, gradient in zip(weights, gradients, strict=True)
    ]
    is_own = [gradient is not None for gradient in gradients]
    is_there = parts[0].new_ones(len(weights))
    for number in (number for number, has_gradient in enumerate(is_own) if not has_gradient):
        is_there[number] = 0
    flat = torch.cat([*parts, is_there])
    world.average_later(flat).wait()
    *of_weights, is_there = torch.split(flat, [*map(len, parts), len(weights)])
    # A device is read only if a gradient is missing here, which another rank may have.
    shares = is_own if all(is_own) else is_there.tolist()
    # With memory and a version of its own: it may be changed, kept or saved without the others.
    return [
        part.view(weight.shape).clone() if share else None
        for weight, part, share in zip(weights, of_weights, shares, strict=True)
    ]


def _of_rows(world: World, weight: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return the average of gradients of which each rank has the rows that its samples use.

    It is dense if any rank's gradient is, as that of an embedding whose weight another layer uses.
    """
    gradients = [rows for rows in world.all_gather_objects(gradient) if rows is not None]
    if not gradients:
        return None
    size = world.place.size
    if not all(rows.is_sparse for rows in gradients):
        dense = [rows.to_dense() if rows.is_sparse else rows for rows in gradients]
        return torch.stack(dense).sum(0) / size
    indices = torch.cat([rows._indices() for rows in gradients], dim=1)  # noqa: SLF001 - uncoalesced
    values = torch.cat([rows._values() for rows in gradients]) / size  # noqa: SLF001
    return torch.sparse_coo_tensor(indices, values, weight.shape, check_invariants=False)
