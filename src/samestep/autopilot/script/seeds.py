"""Gives all ranks of a script the same random streams: seeds unseeded generators equally."""

import multiprocessing
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, instead, wrapping
from samestep.ranks.world.protocol import World


@contextmanager
def equal_seeds(world: World, seed: int | None = None) -> Iterator[None]:
    """Seed all generators of this process as on the other ranks, and replace seeds from the system.

    Seeds that the script sets are unchanged. Where it would get a seed from the system
    (``numpy.random.default_rng()``, ``random.Random()``, ``torch.seed()``), it gets one that is the same on
    all ranks, and another one in each run.

    Args:
        world: the ranks.
        seed: the seed from which these seeds are drawn; None for another one in each run.
    """
    common = random.Random(world.broadcast_object(secrets.randbits(63)) if seed is None else seed)

    base, owner = common.getrandbits(63), _process()

    def draw() -> int:
        nonlocal owner
        if owner != _process():  # forked: equal on all ranks, but not in two loader processes of one rank
            owner = _process()
            common.seed(f"{base} {owner}")
        return common.getrandbits(63)

    seed_all(draw)
    with _system_seeds_replaced(draw):
        yield


def _process() -> tuple[int, ...]:
    """Return the place of this process among those that its ancestors started by multiprocessing."""
    identity: tuple[int, ...] = multiprocessing.current_process()._identity  # noqa: SLF001
    return identity


def seed_all(draw: Callable[[], int]) -> None:
    """Seed the global generators of torch, Python and NumPy, each with a seed from `draw`."""
    torch.manual_seed(draw())
    random.seed(draw())
    np.random.seed(draw() % 2**32)


@contextmanager
def _system_seeds_replaced(draw: Callable[[], int]) -> Iterator[None]:
    """Replace the functions that get a seed from the system."""

    def seed_of(original: Any, generator: random.Random, a: Any = None, version: int = 2) -> None:
        original(generator, draw() if a is None else a, version)

    def of_python(original: Any, a: Any = None, version: int = 2) -> None:
        original(draw() if a is None else a, version)

    def of_numpy(original: Any, seed: Any = None) -> None:
        original(draw() % 2**32 if seed is None else seed)

    def numpys(original: Any, seed: Any = None) -> Any:
        return original(draw() if seed is None else seed)

    def of_torch() -> int:
        seed = draw()
        torch.manual_seed(seed)
        return seed

    hooks = {
        declarations.RANDOM_OBJECT_SEED: wrapping(seed_of),
        declarations.RANDOM_SEED: wrapping(of_python),
        declarations.NUMPY_SEED: wrapping(of_numpy),
        declarations.NUMPY_GENERATOR: wrapping(numpys),
        declarations.TORCH_SEED: instead(of_torch),
        declarations.TORCH_RANDOM_SEED: instead(of_torch),
    }
    with attached_all(hooks):
        yield
