"""Makes all ranks fail if the slice of one rank does, instead of waiting for it in a collective.

In an equivalence check a forward may raise for the slice of one rank, while the others have entered a batch
norm. So before each collective within a forward the ranks agree that none has failed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Agree = Callable[[bool], bool]
_agree: ContextVar[Agree | None] = ContextVar("samestep_agree", default=None)


class OtherRankFailedError(Exception):
    """The slice of another rank has raised an error."""


@contextmanager
def failing_together(agree: Agree) -> Iterator[None]:
    """End the block on all ranks if one of them raises an error in it.

    Args:
        agree: returns whether all ranks have passed True.

    Raises:
        OtherRankFailedError: another rank has left the block with an error.
    """
    token = _agree.set(agree)
    try:
        yield
    except OtherRankFailedError:
        raise
    except Exception:
        agree(False)  # noqa: FBT003 - its only argument
        raise
    else:
        before_collective()
    finally:
        _agree.reset(token)


def before_collective() -> None:
    """Raise `OtherRankFailedError` if another rank has failed; do nothing outside of `failing_together`."""
    agree = _agree.get()
    if agree is not None and not agree(True):  # noqa: FBT003
        raise OtherRankFailedError
