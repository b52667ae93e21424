"""Reads and writes the process environment; no other module does.

All other code takes a ``Mapping[str, str]`` as an argument, so that every launcher's variables can be
tested from a recording.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from samestep.base.errors import DetectionError

Environment: TypeAlias = Mapping[str, str]

_DIGITS = 10  # digits of the largest number that a launcher sets

SECRET_FILE = "SAMESTEP_SECRET_FILE"  # noqa: S105 - a variable's name
"""The file with the secret of a job."""

UNTRACKED: Environment = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:mlruns",
}
"""Variables under which experiment trackers send nothing to a server."""


def snapshot() -> dict[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)


def integer(env: Environment, name: str) -> int | None:
    """Return variable `name` as an integer, or None where it is absent or empty.

    Raises:
        DetectionError: the variable is not an integer, or is too large.
    """
    text = env.get(name, "").strip()
    if not text:
        return None
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:  # int() reads other scripts' digits too
        raise DetectionError(f"{name}={text!r} is not an integer. Unset it, or set it to one.")
    if len(text) > _DIGITS:
        raise DetectionError(
            f"{name}={text} is too large: it has {len(text)} digits. Unset it, or correct it."
        )
    return int(text)


def export(values: Mapping[str, str]) -> None:
    """Set variables for this process and for those it starts afterwards."""
    os.environ.update(values)


def replace(before: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Set variables for this process, and remove those of `before` that are not among them."""
    for name in before.keys() - values.keys():
        os.environ.pop(name, None)
    os.environ.update(values)


@contextmanager
def exported(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the duration of a block, then restore their values."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def hidden(prefixes: tuple[str, ...]) -> Iterator[None]:
    """Remove the variables whose names begin with one of `prefixes` for the duration of a block."""
    before = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    for name in before:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)
