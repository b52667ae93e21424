"""Ends the run if one rank's slice of a call has raised an error and the script continues.

A script may catch the error of a forward, and continue with the next batch. If the slices of all ranks have
raised, all ranks continue equally. If some have not, they wait in the call for the rank that has raised; its
next call, or the end of its script, then ends the run.
"""

from collections.abc import Callable
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store

from samestep.base.errors import Error, OutOfStep
from samestep.base.polling import holds_within

_PATIENCE_S = 20.0
"""Seconds that a rank waits for the others to raise as well: they compute slices of the same batch."""


class FailedCalls:
    """The split calls of one rank that have raised an error.

    Args:
        patience_s: timeout for the other ranks, in seconds.
        store: returns the store of all ranks.
    """

    def __init__(
        self, patience_s: float = _PATIENCE_S, store: Callable[[], Any] = _get_default_store
    ) -> None:
        self._patience_s, self._store = patience_s, store
        self._text = self._key = ""

    def record(self, name: str, number: int, error: Exception) -> None:
        """Record that a split call has raised an error.

        Args:
            name: the name of the module.
            number: the number of the call among the split calls of the script.
            error: the error.
        """
        self._text = (
            f"{name} raised {type(error).__name__} for this worker's slice of a batch but not for all "
            "slices, and the script went on. Keep its calls unsplit: samestep.batch_dim(model, dim=None)."
        )
        self._key = "" if isinstance(error, Error) else f"samestep/raised/{number}"
        if self._key:
            self._count(1)

    def check(self, size: int) -> None:
        """Check that the last call that raised an error did so on all ranks.

        Args:
            size: the number of ranks.

        Raises:
            OutOfStep: it did not raise on all ranks.
        """
        if not self._text:
            return
        if self._key and holds_within(lambda: self._count(0) >= size, self._patience_s, least_s=0.01):
            self._text = ""
            return
        raise OutOfStep(self._text)

    def _count(self, amount: int) -> int:
        """Add to the number of ranks that have raised, and return it; 0 without a store."""
        try:
            return int(self._store().add(self._key, amount))
        except (RuntimeError, ValueError):  # rank 0 has exited, or ranks are threads
            return 0
