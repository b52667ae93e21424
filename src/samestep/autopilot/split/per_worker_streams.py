"""Implements ``--random per-worker``: each worker draws its own random numbers, in the shape of its slice.

This is faster than draws for the whole batch if activations are large, but the training differs from the
serial one: as with native data parallelism, the numbers depend on the number of workers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from samestep.ranks.world.protocol import World


@contextmanager
def own_stream(world: World) -> Iterator[None]:
    """Let torch draw from a stream of this rank and this block; restore the common stream at the end.

    The stream depends on the state of the common one and on the rank, so a run can be repeated. Python's
    `random` and NumPy stay common, because modules use them for decisions, such as to skip a layer.
    """
    seed = int(torch.randint(2**62, ()))  # advances the common stream, equally on all ranks
    own = int(np.random.SeedSequence([seed, world.place.rank]).generate_state(1, np.uint64)[0] >> 1)
    devices = [] if world.device.type == "cpu" else [world.device]
    with torch.random.fork_rng(devices):
        torch.manual_seed(own)
        yield
