"""Gives the generators that a script does not seed the same seeds in each of its runs."""

import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping

SEED_BITS = 63
"""Bits of a seed, which torch stores in a signed integer of 64 bits."""
SEEDS_OF_NUMPY = 2**32
"""Number of seeds that NumPy's global generator accepts."""


@contextmanager
def fixed_seeds(seed: int) -> Iterator[None]:
    """Seed all generators of this process, and replace seeds from the system.

    Seeds that the script sets are unchanged. Where it would get a seed from the system
    (``numpy.random.default_rng()``, ``random.Random()``, ``torch.seed()``), it gets one that is the same in
    each run.
    """
    common = random.Random(seed)

    base, main = common.getrandbits(SEED_BITS), _drawing()
    generators: dict[tuple[Any, ...], random.Random] = {}

    def draw() -> int:
        drawing = _drawing()
        if drawing == main:
            return common.getrandbits(SEED_BITS)
        # Equal in all runs, but not in two processes or threads, whose draws have no order.
        if drawing not in generators:
            generators[drawing] = random.Random(f"{base} {drawing}")
        return generators[drawing].getrandbits(SEED_BITS)

    def seed_of(original: Any, generator: random.Random, a: Any = None, version: int = 2) -> None:
        original(generator, draw() if a is None else a, version)

    def of_python(original: Any, a: Any = None, version: int = 2) -> None:
        original(draw() if a is None else a, version)

    def of_numpy(original: Any, seed: Any = None) -> None:
        original(draw() % SEEDS_OF_NUMPY if seed is None else seed)

    def numpys(original: Any, seed: Any = None) -> Any:
        return original(draw() if seed is None else seed)

    def of_torch(_: Any) -> int:
        seed = draw()
        torch.manual_seed(seed)
        return seed

    hooks = {
        declarations.RANDOM_OBJECT_SEED: wrapping(seed_of),
        declarations.RANDOM_SEED: wrapping(of_python),
        declarations.NUMPY_SEED: wrapping(of_numpy),
        declarations.NUMPY_GENERATOR: wrapping(numpys),
        declarations.TORCH_SEED: wrapping(of_torch),
        declarations.TORCH_RANDOM_SEED: wrapping(of_torch),
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
    np.random.seed(draw() % SEEDS_OF_NUMPY)
