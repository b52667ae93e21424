"""Compares the installed packages with those that samestep needs; imports none of them."""

import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

NEEDED = (
    *("torch>=2.6", "numpy>=1.24", "typer>=0.29", "rich>=13", "psutil>=5.9", "safetensors>=0.4.4"),
    *("cloudpickle>=3.0", "pooch>=1.8", "filelock>=3.13", "tomli-w>=1.0"),
    *(("tomli>=2",) if sys.version_info < (3, 11) else ()),
)
"""The dependencies of pyproject.toml, which a source tree that is not installed has no record of."""


def missing(needed: Iterable[str] = NEEDED, installed: Callable[[str], str] = version) -> list[str]:
    """Return the requirements that this Python does not meet, with the installed version if it is too old."""
    lacking = []
    for requirement in needed:
        name, _, least = requirement.partition(">=")
        try:
            found = installed(name)
        except PackageNotFoundError:
            lacking.append(requirement)
        else:
            if _numbers(found) < _numbers(least):
                lacking.append(f"{requirement} ({found} is installed)")
    return lacking


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a release: ``2.11.0+cu130`` is (2, 11, 0)."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])[:3]))
