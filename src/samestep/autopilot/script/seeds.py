"""Gives all ranks of a script the same random streams: seeds unseeded generators equally."""

import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

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

    def draw() -> int:
        return common.getrandbits(63)

    seed_all(draw)
    with _system_seeds_replaced(draw):
        yield


def seed_all(draw: Callable[[], int]) -> None:
    """Seed the global generators of torch, Python and NumPy, each with a seed from `draw`."""
    torch.manual_seed(draw())
    random.seed(draw())
    np.random.seed(draw() % 2**32)


@contextmanager
def _system_seeds_replaced(draw: Callable[[], int]) -> Iterator[None]:
    """Replace the functions that get a seed from the system."""
    seed_one, seed_python, seed_numpy = random.Random.seed, random.seed, np.random.seed
    make_numpy, seed_torch = np.random.default_rng, torch.manual_seed

    def seed_of(generator: random.Random, a: Any = None, version: int = 2) -> None:
        seed_one(generator, draw() if a is None else a, version)

    def of_python(a: Any = None, version: int = 2) -> None:
        seed_python(draw() if a is None else a, version)

    def of_numpy(seed: Any = None) -> None:
        seed_numpy(draw() % 2**32 if seed is None else seed)

    def numpys(seed: Any = None) -> np.random.Generator:
        return make_numpy(draw() if seed is None else seed)

    def of_torch() -> int:
        seed = draw()
        seed_torch(seed)
        return seed

    with (
        patch.object(random.Random, "seed", seed_of),
        patch.object(random, "seed", of_python),
        patch.object(np.random, "seed", of_numpy),
        patch.object(np.random, "default_rng", numpys),
        patch.object(torch, "seed", of_torch),
        patch.object(torch.random, "seed", of_torch),
    ):
        yield
