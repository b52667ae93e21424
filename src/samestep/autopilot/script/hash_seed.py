"""Checks that Python's hash seed, which decides the order of sets of strings, is the same on all ranks."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.ranks.world.protocol import World

_TEXT = "samestep"


@contextmanager
def equal_hashes(world: World) -> Iterator[None]:
    """Check that hashes are equal on all ranks; make them equal in the script's child processes, too.

    Spawned workers of a loader (``multiprocessing_context="spawn"``) would otherwise choose their own seed.

    Args:
        world: the ranks, all of which call this.

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
