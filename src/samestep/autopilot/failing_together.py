"""Lets a slice fail on one rank while others wait for it in a collective of the same forward.

In an equivalence check a slice may be anything to a module: it may raise on one rank where the others have
entered a batch norm. So before each collective within a forward the ranks agree that none has failed.
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
    """Within, an error of one rank ends the block on all of them.

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
        agree(False)  # noqa: FBT003 - as it is declared
        raise
    else:
        before_collective()
    finally:
        _agree.reset(token)


def before_collective() -> None:
    """Raise `OtherRankFailedError` if a rank has failed that this one would wait for; only in checks."""
    agree = _agree.get()
    if agree is not None and not agree(True):  # noqa: FBT003
        raise OtherRankFailedError
