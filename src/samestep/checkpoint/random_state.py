"""The random generators of all ranks, as part of a checkpoint."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError, OutOfStep
from samestep.world.world import World

_NUMPY_WORDS = 624
"""Of the generator that numpy's module functions draw from."""


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of this process's generators: torch's on the CPU and on `device`, Python's, NumPy's.

    It consists of tensors and plain values, so that a checkpoint can hold it.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, gauss_next = random.getstate()
    return {
        "cpu": torch.get_rng_state(),
        "device": None if device.type == "cpu" else _device_state(device),
        "python": {"version": version, "words": torch.tensor(words), "gauss_next": gauss_next},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the generators of this process back to what `random_state` returned.

    The generator of `device` stays as it is where `state` is that of a run without one.
    """
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and state["device"] is not None:
        _set_device_state(state["device"], device)
    python, numpy = state["python"], state["numpy"]
    random.setstate(_python_state(python))
    np.random.set_state(_numpy_state(numpy))


def _python_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["words"].tolist()), state["gauss_next"]


def _numpy_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = state["keys"].numpy().astype(np.uint32)
    return state["name"], keys, state["position"], state["has_gauss"], state["gauss"]


def check_random_states(states: Any) -> None:
    """Refuse what generators would not take, or fail of later; nothing is changed.

    Args:
        states: of all ranks, as a checkpoint has them.

    Raises:
        CheckpointError: names the rank.
    """
    if not isinstance(states, list | tuple):
        raise CheckpointError(f"the checkpoint has a {type(states).__name__} in the place of random states.")
    rank = 0
    try:
        for rank, state in enumerate(states):  # noqa: B007 - told below
            _set_unused(state)
    except Exception as error:
        told = " ".join(str(error).split())
        raise CheckpointError(
            f"the checkpoint has no random state of rank {rank}: {type(error).__name__}: {told}."
        ) from error


def _set_unused(state: Mapping[str, Any]) -> None:
    """Set generators that nothing draws from to a state."""
    torch.Generator().set_state(state["cpu"])
    if not isinstance(state["device"], Tensor | type(None)):
        raise TypeError(f"the device's is a {type(state['device']).__name__}")
    python, numpy = state["python"], state["numpy"]
    if not isinstance(python["gauss_next"], float | type(None)):
        raise TypeError(f"gauss_next is a {type(python['gauss_next']).__name__}")
    random.Random().setstate(_python_state(python))
    if not 0 <= numpy["position"] <= _NUMPY_WORDS:  # numpy reads beyond its memory then
        raise ValueError(f"numpy's position is {numpy['position']}")
    np.random.RandomState().set_state(_numpy_state(numpy))


def gather_random_state(world: World, **standing: int) -> list[dict[str, Any]]:
    """Return the random state of each rank, in rank order; called by all ranks where they checkpoint.

    Args:
        world: who calls.
        standing: where this rank stands: ``step=120``, and what else must be the same on all ranks. It is
            compared in the same exchange.

    Raises:
        OutOfStep: ranks stand at different places; on every rank.
    """
    told = world.all_gather_objects((standing, random_state(world.device)))
    for rank, (theirs, _) in enumerate(told):
        if theirs != told[0][0]:
            raise OutOfStep(
                f"rank 0 comes to a checkpoint at {_text(told[0][0])}, rank {rank} at {_text(theirs)}. "
                "All ranks have to come to it in the same step."
            )
    return [state for _, state in told]


def restore_random_state(world: World, states: Sequence[Mapping[str, Any]]) -> bool:
    """Put each rank's generators back to its own state, where there is one for each rank.

    Returns:
        False where the checkpoint is of another number of ranks: then nothing is changed, and what is drawn
        from here on is not what an undisturbed run would draw.
    """
    if len(states) != world.place.size:
        return False
    set_random_state(states[world.place.rank], world.device)
    return True


def _device_state(device: torch.device) -> Tensor:
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def _set_device_state(state: Tensor, device: torch.device) -> None:
    module = torch.get_device_module(device)
    module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)


def _text(standing: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in standing.items())
