"""Holds the world that this context has joined, for public functions that a script calls without one.

Inside samestep a World is an argument. A user's script may call ``samestep.replicate(model)``, which means
the job that the script is in: this one context variable holds it.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from samestep.base.context_values import bound

if TYPE_CHECKING:
    from samestep.ranks.world.protocol import World

_WORLD: ContextVar["World"] = ContextVar("samestep_world")


def entered(world: "World") -> AbstractContextManager[None]:
    """Return a context in which `world` is the current one."""
    return bound(_WORLD, world)


def current() -> "World":
    """Return the world that this context has joined.

    A process group that the script set up itself counts as joined. Without one, a process that its
    launcher started as one of several is refused: it would train alone, as one of N duplicates of one run.

    Raises:
        DetectionError: the launcher started several workers and none of them has joined.
    """
    world = _WORLD.get(None)
    if world is not None:
        return world
    from samestep.ranks.world.process_group import adopt

    return adopt()
