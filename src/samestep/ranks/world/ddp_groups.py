"""Keeps the process group of a `DistributedDataParallel` alive until its reducer has ended.

A group's destructor waits for the group's thread, which needs the interpreter lock to free the tensors of
its last collective. A reducer that owns the last reference runs that destructor with the lock held, and the
process hangs: under torch 2.13, a script that destroys the group before it drops its model hung in 8 of 100
runs on a busy machine. A reference from Python, dropped after the reducer's, releases the lock first.
"""

import weakref
from collections.abc import Callable
from typing import Any

from samestep.hooks import declarations
from samestep.hooks.registry import attach, wrapping


def keep_groups_of_reducers() -> None:
    """Make each `DistributedDataParallel` created from now on keep its group beyond its reducer."""
    attach(declarations.NEW_REDUCER, wrapping(_created))


def _created(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    original(model, *args, **kwargs)
    for owner in (model.reducer, model.logger):  # the logger owns the reducer too
        weakref.finalize(owner, _drop, model.process_group).atexit = False


def _drop(group: Any) -> None:
    """Drop the reference to a group with the end of this call."""
