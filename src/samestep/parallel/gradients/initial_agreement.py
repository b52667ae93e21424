"""Checks that all ranks have the same model, and broadcasts the values of rank 0."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from samestep.base.errors import OutOfStep, UsageError
from samestep.hooks import module_parts
from samestep.ranks.world.protocol import World


def sparse_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model that get sparse gradients, by name."""
    return {
        f"{name}.weight" if name else "weight": module.weight
        for name, module in module_parts.named_modules(model)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


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
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _take(tensors: Sequence[Tensor], message: Tensor) -> None:
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    for tensor, part in zip(tensors, torch.split(message, sizes), strict=True):
        # Cloned, because a view as another dtype must begin at a multiple of its size.
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
