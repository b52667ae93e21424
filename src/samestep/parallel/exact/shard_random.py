"""Seeds the random generators for each logical shard, and restores them afterwards."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from samestep.base.errors import UsageError

_generators = threading.Lock()  # ranks that are threads share the generators of the process
_owners: set[int] = set()
"""Id of the thread that holds the lock; empty if none does."""


@contextmanager
def isolated_generators(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Reserve the generators of torch on the CPU and on `device`, of numpy and of Python for a block.

    Their states are restored at the end.

    Yields:
        a function that seeds all of them.

    Raises:
        UsageError: this thread has reserved them already.
    """
    thread = threading.get_ident()
    if thread in _owners:
        raise UsageError(
            "a loop over the shards of another step or model has not ended in this thread. Finish it, or "
            "close its generator if it was left early."
        )
    is_cpu = device.type == "cpu"
    on_device = nullcontext() if is_cpu else torch.random.fork_rng([device], device_type=device.type)

    def seed_all(seed: int) -> None:
        # torch.manual_seed is slower: it also records a stack trace for each kind of accelerator.
        (torch.default_generator.manual_seed if is_cpu else torch.manual_seed)(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    with _generators, on_device:
        before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
        _owners.add(thread)
        try:
            yield seed_all
        finally:
            _owners.remove(thread)
            torch.default_generator.set_state(before[0])
            np.random.set_state(before[1])
            random.setstate(before[2])
