"""Random numbers of one logical shard, whoever computes it."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from samestep.base.errors import UsageError

_generators = threading.Lock()  # ranks that are threads share the generators of the process
_borrowers: set[int] = set()
"""The thread that has them."""


@contextmanager
def drawing(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Lend out the generators of torch, on the CPU and on `device`, of numpy and of Python.

    Their states are put back in the end.

    Yields:
        what seeds all of them.

    Raises:
        UsageError: this thread has them already.
    """
    thread = threading.get_ident()
    if thread in _borrowers:
        raise UsageError(
            "shards of another step or another model are under way in this thread: finish that loop, or "
            "close it where it was left before its end, and then begin the next one."
        )
    is_cpu = device.type == "cpu"
    on_device = nullcontext() if is_cpu else torch.random.fork_rng([device], device_type=device.type)

    def seed_all(seed: int) -> None:
        # torch.manual_seed also notes for each kind of accelerator who has called it, which takes longer.
        (torch.default_generator.manual_seed if is_cpu else torch.manual_seed)(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    with _generators, on_device:
        before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
        _borrowers.add(thread)
        try:
            yield seed_all
        finally:
            _borrowers.remove(thread)
            torch.default_generator.set_state(before[0])
            np.random.set_state(before[1])
            random.setstate(before[2])
