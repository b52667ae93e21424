"""Compares checksums of the weights between ranks, to detect replicas that have diverged.

The bits of each tensor are read as integers of at most 32 bits and summed with position-dependent odd 64-bit
weights, on the tensor's own device::

    hash(tensor) = sum over i of  bits[i] * weight[i]   modulo 2^64

An odd weight has an inverse, so a change in one place always changes the sum; changes in several places are
missed with a probability of about 2^-32. (With 64-bit integers two flipped signs cancel: 2^63 * (odd + odd)
is 0.) Bits are compared, not values: NaN equals NaN, and 0.0 differs from -0.0.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from samestep.base.errors import OutOfStep
from samestep.ranks.world.protocol import World

_PIECE = 1 << 18  # elements hashed at a time, which bounds the temporary memory
_BITS = {1: torch.uint8, 2: torch.int16}
_FACTOR = 0x5851F42D4C957F2D  # odd; carries the order of the pieces


def check_equal(world: World, tensors: Mapping[str, Tensor]) -> None:
    """Raise OutOfStep, on all ranks, unless the tensors have equal bits on all ranks.

    Costs one pass over the tensors and one all-gather of 8 bytes per tensor.
    """
    checksums_here = torch.stack([checksum(tensor).to(world.device) for tensor in tensors.values()])
    rows = torch.stack(world.all_gather(checksums_here)).tolist()  # (ranks, tensors)
    for column, name in enumerate(tensors):
        checksums = [row[column] for row in rows]
        if len(set(checksums)) > 1:
            raise OutOfStep(drift_message(name, checksums))


def drift_message(name: str, checksums: Sequence[int]) -> str:
    """Return a message that names the ranks whose checksum differs from the most common one.

    In a tie the checksum of the lowest rank counts as the common one.
    """
    usual, count = Counter(checksums).most_common(1)[0]  # counts equal: in order of first appearance
    odd = [rank for rank, value in enumerate(checksums) if value != usual]
    majority = "rank 0" if count == 1 or len(checksums) == 2 else f"the other {count} ranks"
    verb, ranks = ("differs", "rank") if len(odd) == 1 else ("differ", "ranks")
    return (
        f"the weights of the ranks differ: {ranks} {', '.join(map(str, odd))} {verb} from {majority}, "
        f"first in {name}. Something changes weights outside the averaged gradients: an optimizer step on "
        "some ranks only, another seed, an unordered set, or a write to a parameter."
    )


def checksum(tensor: Tensor) -> Tensor:
    """Return the checksum of a tensor, int64, on its device."""
    flat = tensor.detach().contiguous().reshape(-1)
    bits = flat.view(_BITS.get(flat.element_size(), torch.int32))
    weights = _weights(flat.device)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for piece in torch.split(bits, _PIECE):
        # Converted first: multiplying integers of two widths is four times slower.
        total = total * _FACTOR + piece.long().mul_(weights[: piece.numel()]).sum()
    return total


def _weights(device: torch.device) -> Tensor:
    """Return odd pseudo-random weights of shape (_PIECE,), the same on every rank."""
    if device not in _cached_weights:
        generator = torch.Generator().manual_seed(0x5A3E)
        weights = torch.randint(-(1 << 62), 1 << 62, (_PIECE,), generator=generator, device="cpu")
        _cached_weights[device] = (weights * 2 + 1).to(device)
    return _cached_weights[device]


_cached_weights: dict[torch.device, Tensor] = {}


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes of a state dict, in the order of the names.

    Two models have equal digests if and only if their weights are bit-equal.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor_bytes(tensor.detach().cpu()))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a CPU tensor in row-major order, without a copy if it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
