"""A fingerprint of the weights: finds replicas that drift, and names rank and parameter.

The bits of each tensor are read as integers and summed with position-dependent odd weights, in wrapping
arithmetic on the tensor's own device::

    hash(tensor) = sum over i of  bits[i] * weight[i]

An odd weight has an inverse, so a change of any single element always changes the sum; other changes escape
with a chance of about 2^-32. Bits, not values: NaN equals NaN, and 0.0 differs from -0.0.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.world.world import World

_PIECE = 1 << 18
"""Elements hashed at a time: bounds the temporary memory."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR = 0x5851F42D4C957F2D  # odd; carries the order of the pieces


def check_alike(world: World, tensors: Mapping[str, Tensor]) -> None:
    """Raise OutOfStep, on all ranks alike, unless all ranks hold bit-equal tensors.

    Costs one pass over the tensors and one all-gather of 8 bytes per tensor.
    """
    mine = torch.stack([_hash(tensor).to(world.device) for tensor in tensors.values()])
    rows = torch.stack(world.all_gather(mine)).tolist()  # (ranks, tensors)
    for column, name in enumerate(tensors):
        found = [row[column] for row in rows]
        if len(set(found)) > 1:
            raise OutOfStep(_verdict(name, found))


def _verdict(name: str, found: Sequence[int]) -> str:
    """Name the minority: who differs from the most common value, that of the lowest rank in a tie."""
    usual, count = Counter(found).most_common(1)[0]  # counts equal: in order of first appearance
    odd = [rank for rank, value in enumerate(found) if value != usual]
    others = "rank 0" if count == 1 or len(found) == 2 else f"the other {count} ranks"
    verb, ranks = ("differs", "rank") if len(odd) == 1 else ("differ", "ranks")
    return (
        f"the replicas have drifted apart: {ranks} {', '.join(map(str, odd))} {verb} from {others}, "
        f"first in {name}. Something changes weights outside the exchanged gradients: an optimizer step on "
        "some ranks only, another seed, an unordered set, or a write to a parameter."
    )


def _hash(tensor: Tensor) -> Tensor:
    """Return the hash of one tensor, int64, on its device."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(_BITS[flat.element_size()])
    weights = _weights(flat.device, wide=bits.dtype == torch.int64)
    first, *others = torch.split(bits, _PIECE)
    total: Tensor = (first * weights[: first.numel()]).sum(dtype=torch.int64)
    for piece in others:
        total = total * _FACTOR + (piece * weights[: piece.numel()]).sum(dtype=torch.int64)
    return total


def _weights(device: torch.device, *, wide: bool) -> Tensor:
    """Return odd pseudo-random weights, (_PIECE,), the same on every rank."""
    key = (device, wide)
    if key not in _kept:
        generator = torch.Generator().manual_seed(0x5A3E)
        dtype, limit = (torch.int64, 1 << 62) if wide else (torch.int32, 1 << 30)
        weights = torch.randint(-limit, limit, (_PIECE,), generator=generator, dtype=dtype)
        _kept[key] = (weights * 2 + 1).to(device)
    return _kept[key]


_kept: dict[tuple[torch.device, bool], Tensor] = {}
