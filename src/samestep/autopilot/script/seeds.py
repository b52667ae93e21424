"""Gives all ranks of a script the same random streams: seeds unseeded generators equally."""

import multiprocessing
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, instead, wrapping
from samestep.ranks.world.protocol import World


@contextmanager
def equal_seeds(world: World, seed: int | None = None) -> Iterator[None]:
    """Seed all generators of this process as on the other ranks, and replace seeds from the system.

    Seeds that the script sets are unchanged. Where it would get a seed from the system
    (``numpy.random.default_rng()``, ``random.Random()``, ``torch.seed()``), it gets one that is the same on
    all ranks, and without `seed` another one in each run.
    """
    common = random.Random(world.broadcast_object(secrets.randbits(63)) if seed is None else seed)

    base, main = common.getrandbits(63), _drawing()
    others: dict[tuple[Any, ...], random.Random] = {}

    def draw() -> int:
        own = _drawing()
        if own == main:
            return common.getrandbits(63)
        # Equal on all ranks, but not in two processes or threads of one rank, whose draws have no order.
        if own not in others:
            others[own] = random.Random(f"{base} {own}")
        return others[own].getrandbits(63)

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
    seed_all(draw)
    with attached_all(hooks):
        yield


def _drawing() -> tuple[Any, ...]:
    """Return the place of this process among those that its ancestors have started, and the thread's name.

    The name of the main thread is left out.
    """
    identity: tuple[int, ...] = multiprocessing.current_process()._identity  # noqa: SLF001
    thread = threading.current_thread()
    return identity if thread is threading.main_thread() else (*identity, thread.name)


def seed_all(draw: Callable[[], int]) -> None:
    """Seed the global generators of torch, Python and NumPy, each with a seed from `draw`."""
    torch.manual_seed(draw())
    random.seed(draw())
    np.random.seed(draw() % 2**32)


_TEXT = "samestep"


@contextmanager
def equal_hashes(world: World) -> Iterator[None]:
    """Check that hashes are equal on all ranks; make them equal in the script's child processes, too.

    Spawned workers of a loader (``multiprocessing_context="spawn"``) would otherwise choose their own seed.

    Raises:
        UsageError: hashes differ; all ranks raise it.
    """
    found = world.all_gather_objects(hash(_TEXT))
    other = next((rank for rank, value in enumerate(found) if value != found[0]), None)
    if other is not None:
        raise UsageError(
            f"the ranks have different hash seeds: hash({_TEXT!r}) is {found[0]} on rank 0 and "
            f"{found[other]} on rank {other}, so that sets have different orders. Set {env.HASH_SEED} to "
            "the same number for all ranks."
        )
    with nullcontext() if env.snapshot().get(env.HASH_SEED) else env.exported(env.FIXED_HASH_SEED):
        yield
