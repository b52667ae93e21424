"""Checks that all ranks have the same model: its structure at first, then checksums of its weights.

At first the values of rank 0 are broadcast; the checksums detect replicas that have diverged. The bits of
each tensor are read as integers of at most 32 bits and summed with position-dependent odd 64-bit weights, on
the tensor's own device::

    hash(tensor) = sum over i of  bits[i] * weight[i]   modulo 2^64

An odd weight has an inverse, so a change in one place always changes the sum; changes in several places are
missed with a probability of about 2^-32. (With 64-bit integers two flipped signs cancel: 2^63 * (odd + odd)
is 0.) Bits are compared, not values: NaN equals NaN, and 0.0 differs from -0.0.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from samestep.base.errors import OutOfStep, UsageError
from samestep.hooks import module_parts
from samestep.ranks.world.operation import flattened
from samestep.ranks.world.protocol import World


def sparse_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model that get sparse gradients, by name."""
    return {
        f"{name}.weight" if name else "weight": module.weight
        for name, module in module_parts.named_modules(model)
        if is_sparse(module)
    }


def is_sparse(module: nn.Module) -> TypeGuard[nn.Embedding | nn.EmbeddingBag]:
    """Return whether a module is an embedding whose weight gets sparse gradients."""
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse


Signature: TypeAlias = list[tuple[str, str, str]]
"""Name, dtype and shape, and whether it is trained, of each tensor."""
PIECE_BYTES = 64 << 20
"""Maximum size of a broadcast message, which is also the temporary memory."""


def check_supported(model: nn.Module) -> None:
    """Raise UsageError, before any work, if a model cannot be trained data-parallel."""
    for name in sorted(sparse_weights(model)):
        raise UsageError(
            f"{name} belongs to an embedding with sparse gradients, which have another size on every rank "
            "and cannot be averaged in place. Build it with sparse=False."
        )
    for name, tensor in named_tensors(model):
        if is_lazy(tensor):
            raise UsageError(
                f"{name} has no shape yet (a lazy module). Run the model on one batch before replicate()."
            )
        if tensor.device.type == "meta":
            raise UsageError(f"{name} is on the meta device, without values. Materialize the model first.")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise UsageError(
                f"{name} is a {tensor.dtype} tensor of layout {tensor.layout}, whose values cannot be sent "
                "to other ranks. Store dense tensors, such as its indices and values, or no buffer."
            )


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, then buffers; tied ones once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def check_same_structure(world: World, model: nn.Module) -> None:
    """Raise OutOfStep, on all ranks, unless names, shapes, dtypes and frozen parameters are equal."""
    signature = _signature(model)
    difference = _first_difference(world.broadcast_object(signature), signature)
    for rank, text in enumerate(world.all_gather_objects(difference)):
        if text is not None:
            raise OutOfStep(
                f"the models to replicate differ: {text} on rank {rank}. Build the same model on every rank."
            )


def broadcast_values(world: World, model: nn.Module) -> None:
    """Overwrite all parameters and buffers with those of rank 0."""
    broadcast_tensors(world, [tensor for _, tensor in named_tensors(model)])


def broadcast_tensors(world: World, tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors, which have equal shapes and dtypes on all ranks, with those of rank 0.

    They are sent as bytes, because back ends support different dtypes, and so that tensors share messages.
    """
    with torch.no_grad():
        for group in groups(tensors):
            message = torch.cat([_bytes(tensor).to(world.device) for tensor in group])
            world.broadcast(message)
            if not world.place.is_main:
                _take(group, message)


def _signature(model: nn.Module) -> Signature:
    return [
        (
            name,
            f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}",
            "frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else "",
        )
        for name, tensor in named_tensors(model)
    ]


def _first_difference(first: Signature, here: Signature) -> str | None:
    for expected, tensor in zip(first, here, strict=False):
        if expected != tensor:
            return f"{_describe(*expected)} on rank 0 is {_describe(*tensor)}"
    if len(first) == len(here):
        return None
    longer, where = (first, "missing") if len(first) > len(here) else (here, "extra")
    return f"{_describe(*longer[min(len(first), len(here))])} is {where}"


def _describe(name: str, form: str, frozen: str) -> str:
    return f"{name} ({', '.join(filter(None, [form, frozen]))})"


def groups(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in groups of at most PIECE_BYTES; a larger tensor is a group."""
    group: list[Tensor] = []
    size = 0
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        if group and size + num_bytes > PIECE_BYTES:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += num_bytes
    if group:
        yield group


def _bytes(tensor: Tensor) -> Tensor:
    """Return the values as bytes, in logical order: strides may differ between ranks."""
    return flattened(tensor).view(torch.uint8)


def _take(tensors: Sequence[Tensor], message: Tensor) -> None:
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    for tensor, part in zip(tensors, torch.split(message, sizes), strict=True):
        # Cloned, because a view as another dtype must begin at a multiple of its size.
        values = part.clone().view(tensor.dtype).view(tensor.shape)
        # Along a dimension of stride 0 an expanded tensor stores one number, which is written once.
        stored = tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())
        with torch.inference_mode() if tensor.is_inference() else nullcontext():
            tensor[stored].copy_(values[stored])


_PIECE = 1 << 18  # elements hashed at a time, which bounds the temporary memory
_BITS = {1: torch.uint8, 2: torch.int16}
_FACTOR = 0x5851F42D4C957F2D  # odd; carries the order of the pieces


def check_equal(world: World, tensors: Mapping[str, Tensor]) -> None:
    """Raise OutOfStep, on all ranks, unless the tensors have equal bits on all ranks.

    Costs one pass over the tensors and one all-gather of 8 bytes per tensor.
    """
    if not tensors:
        return
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
    flat = flattened(tensor)
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
    return flattened(tensor).view(torch.uint8).numpy().data
