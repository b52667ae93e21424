"""Saves and restores the random generators of all ranks."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError, OutOfStep
from samestep.hooks.random_draws import RngState
from samestep.ranks.world.protocol import World

_NUMPY_WORDS = 624  # state size of the generator behind numpy's module functions


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of this process's generators: torch's on the CPU and on `device`, Python's, NumPy's.

    It consists of tensors and plain values, as a checkpoint requires.
    """
    now = RngState.now(device)
    name, keys, position, has_gauss, gauss = now.numpy
    version, words, gauss_next = now.python
    return {
        "cpu": now.cpu,
        "device": None if now.device is None else now.device[1],
        "python": {"version": version, "words": torch.tensor(words, device="cpu"), "gauss_next": gauss_next},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the generators of this process from the value of `random_state`.

    The generator of `device` is unchanged if `state` was saved without a device.
    """
    on_device = None if device.type == "cpu" or state["device"] is None else (device, state["device"])
    RngState(state["cpu"], on_device, _python_state(state["python"]), _numpy_state(state["numpy"])).restore()


def _python_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["words"].tolist()), state["gauss_next"]


def _numpy_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = state["keys"].numpy().astype(np.uint32)
    return state["name"], keys, state["position"], state["has_gauss"], state["gauss"]


def check_random_states(states: Any) -> None:
    """Refuse random states that generators cannot load or use; changes nothing.

    Raises:
        CheckpointError: names the rank.
    """
    if not isinstance(states, list | tuple):
        raise CheckpointError(f"the checkpoint has a {type(states).__name__} in place of random states.")
    rank = 0
    try:
        for rank, state in enumerate(states):  # noqa: B007 - used below
            _load_into_unused(state)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the checkpoint has no valid random state of rank {rank}: {type(error).__name__}: {reason}."
        ) from error


def _load_into_unused(state: Mapping[str, Any]) -> None:
    """Load a state into new generators, which checks it."""
    torch.Generator().set_state(state["cpu"])
    if not isinstance(state["device"], Tensor | type(None)):
        raise TypeError(f"the device's is a {type(state['device']).__name__}")
    python, numpy = state["python"], state["numpy"]
    if not isinstance(python["gauss_next"], float | type(None)):
        raise TypeError(f"gauss_next is a {type(python['gauss_next']).__name__}")
    random.Random().setstate(_python_state(python))
    if not 0 <= numpy["position"] <= _NUMPY_WORDS:  # numpy would read beyond its array
        raise ValueError(f"numpy's position is {numpy['position']}")
    np.random.RandomState().set_state(_numpy_state(numpy))


def gather_random_state(world: World, **position: int) -> list[dict[str, Any]]:
    """Return the random state of each rank, in rank order; called by all ranks at a checkpoint.

    `position` is that of this rank, such as ``step=120``, and must be equal on all ranks.

    Raises:
        OutOfStep: the positions differ; on every rank.
    """
    gathered = world.all_gather_objects((position, random_state(world.device)))
    for rank, (place, _) in enumerate(gathered):
        if place != gathered[0][0]:
            raise OutOfStep(
                f"rank 0 saves a checkpoint at {_text(gathered[0][0])}, rank {rank} at {_text(place)}. Save "
                "it in the same step on all ranks."
            )
    return [state for _, state in gathered]


def restore_random_state(world: World, states: Sequence[Mapping[str, Any]]) -> bool:
    """Restore each rank's generators if there is a state for each rank.

    Returns:
        False if the checkpoint has another number of ranks. Nothing is changed then, and later random
        numbers differ from those of an uninterrupted run.
    """
    if len(states) != world.place.size:
        return False
    set_random_state(states[world.place.rank], world.device)
    return True


def _text(position: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in position.items())
