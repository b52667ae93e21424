"""Broadcasts a checkpoint that rank 0 has read, so that other ranks need no access to its files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.ranks.world.protocol import World
from samestep.training.checkpoint.newest import SelectedCheckpoint, is_bare, newest_valid
from samestep.training.checkpoint.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    """The shape, strides and dtype of a tensor that is broadcast."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def choose_on_all(world: World, folder: Path, *, missing_ok: bool = False) -> SelectedCheckpoint | None:
    """Return `newest_valid` of `folder` on every rank; called by all ranks, and read by rank 0.

    Args:
        world: the ranks.
        folder: only rank 0 needs access to it.
        missing_ok: return None if no folder has the name of a checkpoint.

    Raises:
        CheckpointError: see `newest_valid`; on every rank.
    """
    read_here: list[Snapshot] = []

    def choose() -> tuple[Path, tuple[tuple[Path, str], ...]] | None:
        if missing_ok and is_bare(folder):
            return None
        chosen = newest_valid(folder)
        read_here.append(chosen.snapshot)
        return chosen.path, chosen.refused

    found = world.on_main(choose)
    snapshot = broadcast_snapshot(world, next(iter(read_here), None))
    return None if found is None or snapshot is None else SelectedCheckpoint(found[0], snapshot, found[1])


def broadcast_snapshot(world: World, snapshot: Snapshot | None) -> Snapshot | None:
    """Return rank 0's snapshot on every rank; called by all ranks.

    Args:
        world: the ranks.
        snapshot: of rank 0; ignored on other ranks.
    """
    if world.place.size == 1:
        return snapshot
    mine = _parts(snapshot) if snapshot is not None and world.place.is_main else None
    specs = world.broadcast_object(None if mine is None else _mapped(mine, _spec_of))
    if specs is None:
        return None
    theirs = mine if mine is not None else _mapped(specs, _empty)
    for tensor in _tensors(theirs):
        _broadcast_bytes(world, tensor)
    return snapshot if mine is not None else Snapshot(*theirs)


def _parts(snapshot: Snapshot) -> list[Any]:
    return [snapshot.model, snapshot.optimizer, snapshot.state, snapshot.average]


def _spec_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # `empty_like` keeps the strides of a dense tensor, and returns dense ones otherwise.
    like = torch.empty_like(value, device="meta")
    return _TensorSpec(value.shape, like.stride(), value.dtype)


def _empty(value: Any) -> Any:
    if not isinstance(value, _TensorSpec):
        return value
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype)


def _broadcast_bytes(world: World, tensor: Tensor) -> None:
    """Broadcast a CPU tensor as bytes, because back ends support different dtypes."""
    if not tensor.numel():
        return
    dense = torch.empty_like(tensor).copy_(tensor) if world.place.is_main else tensor
    flat = torch.as_strided(dense, (dense.numel(),), (1,)).view(torch.uint8)
    there = flat.to(world.device)
    world.broadcast(there)
    if not world.place.is_main:
        flat.copy_(there)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each leaf of nested dicts, lists and tuples."""
    if isinstance(value, Mapping):
        items = {key: _mapped(item, change) for key, item in value.items()}
        return type(value)(items) if isinstance(value, dict) else items
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value`, in the same order on all ranks."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
