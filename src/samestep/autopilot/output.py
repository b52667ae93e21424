"""What the copies of a script print: once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silenced() -> Iterator[None]:
    """Send stdout and stderr of this process to nowhere, whoever writes; how it fails is told elsewhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = []
    try:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            with suppress(Exception):  # a stream may be closed, or the script's own
                stream.flush()
            kept.append((number, os.dup(number)))
            os.dup2(nowhere, number)
        yield
    finally:
        for number, saved in kept:
            with suppress(Exception):
                (sys.stdout if number == 1 else sys.stderr).flush()
            os.dup2(saved, number)
            os.close(saved)
        os.close(nowhere)
