"""Finds the parameters of a rank that are parts of a parameter of the reference, as in tensor parallelism.

The place of a part is not known: it is assumed that ranks that follow each other hold the parts, in their
order, of equal sizes along one dimension. `model_parallel` checks that they make the whole at the start.
"""

from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from samestep.ranks.world.process_group import adopt
from samestep.verify.tensor_summary import PartPlace


class Parts:
    """The places of this rank's parameters in those of the reference.

    Args:
        wholes: the shapes of the reference's parameters by name.
    """

    def __init__(self, wholes: Mapping[str, Sequence[int]]) -> None:
        self._wholes = wholes
        self._places: dict[int, PartPlace | None] = {}  # by id of the parameter

    def places(
        self, parameters: Sequence[Tensor], names: Callable[[], Mapping[int, str]]
    ) -> list[PartPlace | None] | None:
        """Return the place of each parameter, None for one that is no part; None if no parameter is one.

        Args:
            parameters: the parameters.
            names: returns the names of parameters by their ids.
        """
        if not self._wholes or not (dist.is_available() and dist.is_initialized()):
            return None
        if any(id(parameter) not in self._places for parameter in parameters):
            known = names()
            for parameter in parameters:
                self._places.setdefault(id(parameter), self._place(parameter, known.get(id(parameter), "")))
        places = [self._places[id(parameter)] for parameter in parameters]
        return places if any(places) else None

    def whole_of(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of the parameter that this is a part of, or is."""
        place = self._places.get(id(parameter))
        return tuple(parameter.shape) if place is None else place.shape

    def counts(self, names: Mapping[int, str]) -> dict[str, int]:
        """Return the number of parts of each parameter that is a part, by name."""
        return {
            names[key]: place.count
            for key, place in self._places.items()
            if place is not None and key in names
        }

    def _place(self, parameter: Tensor, name: str) -> PartPlace | None:
        here = adopt().place
        return place_in(tuple(self._wholes.get(name, ())), tuple(parameter.shape), here.rank, here.size)


def place_in(whole: tuple[int, ...], part: tuple[int, ...], rank: int, size: int) -> PartPlace | None:
    """Return the place of a part of a rank in a whole; None if their shapes do not allow that.

    Args:
        whole: shape of the whole.
        part: shape of the part.
        rank: the rank.
        size: number of ranks.
    """
    if len(whole) != len(part) or not all(part):
        return None
    dims = [dim for dim in range(len(whole)) if whole[dim] != part[dim]]
    if len(dims) != 1:
        return None
    (dim,) = dims
    count, rest = divmod(whole[dim], part[dim])
    if rest or count < 2 or size % count:
        return None
    return PartPlace(whole, dim, count, rank % count)
