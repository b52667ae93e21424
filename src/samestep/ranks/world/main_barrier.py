"""Waits for rank 0 without a collective, which would keep the GPUs of the waiting ranks busy."""

import itertools

from torch.distributed.distributed_c10d import _get_default_store

from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import World

_waits = itertools.count()


def wait_for_main(world: World) -> None:
    """Return once rank 0 has called this function; all ranks call it.

    Args:
        world: the ranks; those of torch.distributed wait on the CPU.
    """
    if not isinstance(world, ProcessGroupWorld):
        world.barrier()
        return
    key, store = f"samestep/main-is-here/{next(_waits)}", _get_default_store()
    if world.place.is_main:
        store.set(key, "")
    else:
        store.wait([key])
