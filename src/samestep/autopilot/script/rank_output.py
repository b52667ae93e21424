"""Suppresses the output of ranks other than the one that prints."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silenced() -> Iterator[None]:
    """Discard stdout and stderr of this process, also of C code; errors are reported elsewhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    kept = []
    try:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            with suppress(Exception):  # a stream may be closed, or the script's own
                stream.flush()
            kept.append((number, os.dup(number)))
            os.dup2(null, number)
        yield
    finally:
        for number, saved in kept:
            with suppress(Exception):
                (sys.stdout if number == 1 else sys.stderr).flush()
            os.dup2(saved, number)
            os.close(saved)
        os.close(null)
