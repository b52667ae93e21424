"""What a copy of a script sees of the others: nothing."""

import atexit
import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch.distributed as dist

from samestep.base import env
from samestep.world.world import World

_TORCHRUNS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "SAMESTEP_RUN_ID")
"""Variables that a script, or a library, would take for a reason to join other workers."""


@contextmanager
def as_if_alone(world: World) -> Iterator[None]:
    """Within, no group is up, no launcher's variables are set, and `input` asks once for all copies."""
    asked = builtins.input

    def once(prompt: object = "") -> str:
        return world.on_main(lambda: asked(prompt))

    with ExitStack() as stack:
        stack.enter_context(patch.object(dist, "is_initialized", lambda: False))
        stack.enter_context(env.hidden(_TORCHRUNS))
        stack.enter_context(patch.object(builtins, "input", once))
        yield


def do_what_was_left_for_the_exit() -> None:
    """Run what a script has registered with `atexit`, while it is still steered."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public spelling
