"""Provides a context in which a stream is read as by a single process: no split, and seeded generators.

An `IterableDataset` of a serial script splits itself among the DataLoader's processes by
`torch.utils.data.get_worker_info`, and draws from the global generators, which are seeded differently in
each. Here every process must read the whole stream, and the same one.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from samestep.hooks import declarations
from samestep.hooks.random_draws import RngState
from samestep.hooks.registry import attached, instead, put
from samestep.parallel.sharding.position import Position


class SingleReader:
    """A reentrant context for reading from a stream.

    Inside, `get_worker_info` returns None, and Python's, NumPy's and torch's CPU generators have the stream's
    states, seeded by (seed, epoch). On exit the stream's states are saved and the previous ones restored.

    Args:
        start: the position whose seed and epoch are the seed.
    """

    def __init__(self, start: Position) -> None:
        words = np.random.SeedSequence([start.seed, start.epoch]).generate_state(3, np.uint64)
        torch_seed, python_seed, numpy_seed = (int(word) for word in words)
        self._inside = RngState(
            torch.Generator().manual_seed(torch_seed).get_state(),
            None,
            random.Random(python_seed).getstate(),
            np.random.RandomState(numpy_seed % 2**32).get_state(legacy=True),
        )
        self._info: Any = None

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        outside = RngState.now()
        self._inside.restore()
        self._inside = outside
        # `get_worker_info` reads it, and nothing sets it.
        self._info = put(declarations.WORKER_INFO, self._info)


@contextmanager
def worker_info(info: Any) -> Iterator[None]:
    """Make `get_worker_info` return `info` in the block."""
    with attached(declarations.WORKER_INFO, instead(info)):
        yield
