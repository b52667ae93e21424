"""Wraps all communication of this process: collectives, messages and gradient synchronization."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, named
from samestep.parallel.gradients.synchronizer import GradientSynchronizer

COLLECTIVES = "collectives"
"""Communication by torch.distributed."""
INLINE = "inline"
"""Communication by the thread that calls it: through shared memory, or by direct connections."""


@contextmanager
def communication_through(
    wrapper: Callable[..., Any], finished: Callable[[GradientSynchronizer], None]
) -> Iterator[None]:
    """Perform all communication of this process through `wrapper` for the duration of a block.

    Args:
        wrapper: returns ``call(*args, **kwargs)``; its arguments are `COLLECTIVES`, `INLINE`, or the name
            of a gradient synchronizer, then the call and the call's arguments.
        finished: called with each gradient synchronizer that has averaged gradients.
    """

    def by_kind(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: wrapper(kind, call, *args, **kwargs)

    def of_gradients(finish: Callable[..., Any]) -> Callable[..., None]:
        def call(synchronizer: GradientSynchronizer) -> None:
            wrapper(type(synchronizer).__name__.lower(), finish, synchronizer)
            finished(synchronizer)

        return call

    collective, inline = partial(by_kind, COLLECTIVES), partial(by_kind, INLINE)
    waits = (declarations.BROADCAST_BUFFERS, declarations.WORK_WAIT, declarations.FUTURE_WAIT)
    hooks = {
        **dict.fromkeys((*declarations.COLLECTIVES, *waits), named(collective)),
        **dict.fromkeys((*declarations.SHARED_MEMORY, *declarations.DIRECT_CONNECTIONS), named(inline)),
        declarations.SYNCHRONIZER_FINISH: named(of_gradients),
    }
    with attached_all(hooks):
        yield


def is_python_thread() -> bool:
    """Return whether Python started this thread: torch's autograd starts its threads in C++."""
    this = threading.get_ident()
    dummy = threading._DummyThread  # noqa: SLF001 - the class of a foreign thread that calls current_thread()
    return any(one.ident == this and not isinstance(one, dummy) for one in threading.enumerate())
