"""Ends the run where one rank's slice of a call has failed and the script goes on.

A script may catch what a forward raises, and take the next batch. Where the slices of all ranks have raised,
all go on alike. Where some have not, they wait in the call for the one that has; so its next call, or the end
of its script, ends the run.
"""

import time
from collections.abc import Callable
from typing import Any

from torch.distributed.distributed_c10d import _get_default_store

from samestep.base.errors import Error, OutOfStep

_PATIENCE_S = 20.0
"""How long a rank waits for the others to raise as well: they compute slices of the same batch."""


class FailedCalls:
    """The split calls of one rank that have raised.

    Args:
        patience_s: how long to wait for the other ranks.
        store: returns the store that all ranks see.
    """

    def __init__(
        self, patience_s: float = _PATIENCE_S, store: Callable[[], Any] = _get_default_store
    ) -> None:
        self._patience_s, self._store = patience_s, store
        self._text = self._key = ""

    def note(self, name: str, number: int, error: Exception) -> None:
        """Note that a split call has raised.

        Args:
            name: of the module.
            number: of the call, among the split calls of the script.
            error: what it raised.
        """
        self._text = (
            f"{name} raised {type(error).__name__} for this worker's slice of a batch, and the script went "
            "on; other workers' slices did not raise, as the whole batch does on one worker. Keep its calls "
            "unsplit: samestep.split(model, dim=None)."
        )
        self._key = "" if isinstance(error, Error) else f"samestep/raised/{number}"
        if self._key:
            self._count(1)

    def check(self, size: int) -> None:
        """Check, as the script goes on, that a call that has raised did so on all ranks.

        Args:
            size: the number of ranks.

        Raises:
            OutOfStep: it did not.
        """
        if not self._text:
            return
        deadline = time.monotonic() + self._patience_s
        while self._key and time.monotonic() < deadline:
            if self._count(0) >= size:
                self._text = ""
                return
            time.sleep(0.01)
        raise OutOfStep(self._text)

    def _count(self, amount: int) -> int:
        """Add to the number of ranks that have raised, and return it; 0 where there is no store."""
        try:
            return int(self._store().add(self._key, amount))
        except (RuntimeError, ValueError):  # rank 0 has left, or ranks are threads
            return 0
