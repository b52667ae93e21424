"""Random numbers drawn within a slice: each worker's own, in the shape of its slice.

Cheaper than those of the whole batch where activations are large, and another training than the serial one:
as with native data parallelism, the numbers depend on how many workers there are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from samestep.world.world import World


@contextmanager
def own_stream(world: World) -> Iterator[None]:
    """Within, torch draws from a stream of this rank's and this block's own; then the common one goes on.

    The stream follows from where the common one stands and from the rank, so that a run can be repeated.
    Python's `random` and NumPy stay common: modules decide with them, such as to skip a layer.
    """
    seed = int(torch.randint(2**62, ()))  # the common stream has moved on, alike on all ranks
    own = int(np.random.SeedSequence([seed, world.place.rank]).generate_state(1, np.uint64)[0] >> 1)
    devices = [] if world.device.type == "cpu" else [world.device]
    with torch.random.fork_rng(devices):
        torch.manual_seed(own)
        yield
