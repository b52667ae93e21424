"""Writes samestep's own messages; they go to stderr, because stdout belongs to the program."""

import sys

from samestep.base import env

_QUIET = {"SAMESTEP_QUIET": "1", "SAMESTEP_BANNER": "0"}


def log(text: str) -> None:
    """Print a message on stderr, with samestep's name before it."""
    print(f"samestep: {text}", file=sys.stderr, flush=True)


def inform(text: str) -> None:
    """Print a message about the normal course of a command, unless ``--quiet`` was given."""
    if not is_quiet():
        log(text)


def be_quiet() -> None:
    """Print only results, warnings and errors, in this process and in those that it starts."""
    env.export(_QUIET)


def is_quiet() -> bool:
    """Return whether ``--quiet`` was given."""
    return env.snapshot().get("SAMESTEP_QUIET") == "1"
