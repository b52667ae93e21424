"""What a checkpoint holds, as a value; and how all ranks come to have it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep.base.errors import CheckpointError
from samestep.checkpoint.fit import misfit
from samestep.world.world import World


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a run at one moment, in memory.

    One that was read has its tensors on the CPU.
    """

    model: Mapping[str, Tensor]
    """The state dict, with the serial script's keys."""
    optimizer: Mapping[str, Any]
    """Tensors and plain values: state dicts of optimizer, schedule, scaler; random state of each rank."""
    state: Mapping[str, Any]
    """Where the training stood: step, seed, epoch, samples and what else JSON can hold."""
    average: Mapping[str, Tensor] | None = None
    """Averaged weights, where the run keeps some."""

    def check_fits(self, model: nn.Module) -> None:
        """Compare names and shapes with those of `model`.

        Raises:
            CheckpointError: they are those of another model; tells the first differences.
        """
        wanted = model.state_dict()
        for weights in (self.model, self.average):
            if weights is not None and (difference := misfit(weights, wanted)):
                raise CheckpointError(f"the checkpoint belongs to another model: {difference}.")


@dataclass(frozen=True, slots=True)
class _Form:
    """Stands for a tensor, on its way to another rank."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def broadcast_snapshot(world: World, snapshot: Snapshot | None) -> Snapshot | None:
    """Return rank 0's snapshot on every rank, which need not see its files; called by all ranks.

    Args:
        world: who calls.
        snapshot: looked at on rank 0 alone; None there is None everywhere.
    """
    if world.place.size == 1:
        return snapshot
    mine = _parts(snapshot) if snapshot is not None and world.place.is_main else None
    forms = world.broadcast_object(None if mine is None else _mapped(mine, _form_of))
    if forms is None:
        return None
    theirs = mine if mine is not None else _mapped(forms, _empty)
    for tensor in _tensors(theirs):
        _broadcast_bytes(world, tensor)
    return snapshot if mine is not None else Snapshot(*theirs)


def _parts(snapshot: Snapshot) -> list[Any]:
    return [snapshot.model, snapshot.optimizer, snapshot.state, snapshot.average]


def _form_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # Of a tensor with gaps the strides that `empty_like` gives; a dense one keeps its own.
    like = torch.empty_like(value, device="meta")
    return _Form(value.shape, like.stride(), value.dtype)


def _empty(value: Any) -> Any:
    if not isinstance(value, _Form):
        return value
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype)


def _broadcast_bytes(world: World, tensor: Tensor) -> None:
    """Broadcast a CPU tensor as bytes: back ends differ in the dtypes they carry."""
    if not tensor.numel():
        return
    dense = torch.empty_like(tensor).copy_(tensor) if world.place.is_main else tensor
    flat = torch.as_strided(dense, (dense.numel(),), (1,)).view(torch.uint8)
    there = flat.to(world.device)
    world.broadcast(there)
    if not world.place.is_main:
        flat.copy_(there)


def _mapped(value: Any, change: Any) -> Any:
    """Return `value` with `change` of each leaf; dicts, lists and tuples are kept."""
    if isinstance(value, Mapping):
        items = {key: _mapped(item, change) for key, item in value.items()}
        return type(value)(items) if isinstance(value, dict) else items
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value`, in the one order that all ranks have them in."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
