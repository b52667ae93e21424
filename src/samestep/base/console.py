"""Writes samestep's own messages; they go to stderr, because stdout belongs to the program."""

import sys


def log(text: str) -> None:
    """Print a message on stderr, with samestep's name before it."""
    print(f"samestep: {text}", file=sys.stderr, flush=True)
