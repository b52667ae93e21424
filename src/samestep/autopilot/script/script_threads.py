"""Ends a run with the script's other threads: waits for them, and reports their errors."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from samestep.base.errors import Error
from samestep.base.polling import with_timeout
from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping

_AFTER_ERROR_S = 10.0
"""Seconds that a script that has failed waits for its threads: some may write a checkpoint, others may wait
for something that no longer comes."""


def await_threads(*, failed: bool) -> None:
    """Wait for the script's threads as the interpreter does at its end; with a timeout if it has failed."""
    end = threading._shutdown  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    if not failed:
        end()
        return
    with suppress(TimeoutError):
        with_timeout(_AFTER_ERROR_S, end, name="samestep-threads")


@contextmanager
def ended_by_threads() -> Iterator[None]:
    """End this process if one of the script's threads ends with an error of samestep.

    The other threads might wait for that one for ever, or go on without its part of the work.
    """

    def failed(report: Callable[[Any], None], given: Any) -> None:
        if not isinstance(given.exc_value, Error):
            report(given)
            return
        with suppress(OSError):
            os.write(2, f"samestep: error: {' '.join(str(given.exc_value).split())}\n".encode())
        os._exit(given.exc_value.exit_code)

    with attached(declarations.THREAD_ERROR, wrapping(failed)):
        yield
