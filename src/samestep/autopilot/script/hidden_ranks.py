"""Hides the other ranks from a replicated script."""

import builtins
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from samestep.base import env
from samestep.hooks import declarations
from samestep.hooks.registry import attached, instead, wrapping
from samestep.ranks.world.protocol import World

_LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "SAMESTEP_RUN_ID")
"""Prefixes of variables from which a script or a library infers that it is one of several ranks."""


@contextmanager
def single_process_view(world: World) -> Iterator[None]:
    """Hide the process group and the launcher's variables, and let rank 0 read `input` for all ranks."""
    original = builtins.input

    def once(prompt: object = "") -> str:
        return world.on_main(lambda: original(prompt))

    is_hidden = True

    def exists(original: Callable[[], bool]) -> bool:
        return not is_hidden and original()

    def show() -> None:
        nonlocal is_hidden
        is_hidden = False  # a replacement of the script may call `exists` after the block

    with ExitStack() as stack:
        stack.callback(show)
        stack.enter_context(attached(declarations.GROUP_EXISTS, wrapping(exists)))
        stack.enter_context(env.hidden(_LAUNCH_VARIABLES))
        stack.enter_context(attached(declarations.INPUT, instead(once)))
        yield
