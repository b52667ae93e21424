"""Writes to standard streams that the user's program may have closed."""

import sys
from contextlib import suppress


def write_stderr(text: str) -> None:
    """Write to stderr; nothing where the program has closed it, or put a broken stream in its place."""
    with suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()
