"""Chooses the parameters that `make test` runs; `make test-long` runs the others."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[Any], kept: Collection[str], name: Callable[[Any], str] = str) -> list[Any]:
    """Return a parameter for each case, marked as long unless its name is in `kept`.

    Args:
        cases: the values of a parameter.
        kept: names of the cases that `make test` runs.
        name: returns the name of a case, which is the parameter's identifier too.
    """
    listed = list(cases)
    named = {name(case): case for case in listed}
    assert len(named) == len(listed), "two cases have one name"
    assert set(kept) <= set(named), f"{sorted(set(kept) - set(named))} are not among {sorted(named)}"
    return [
        pytest.param(case, id=text, marks=() if text in kept else pytest.mark.long)
        for text, case in named.items()
    ]


def stem(script: Any) -> str:
    """Return the name of a script in a gallery's manifest, without its suffix."""
    return str(script.name).removesuffix(".py")


def long_param(*values: Any, **options: Any) -> Any:
    """Return a parameter that `make test-long` runs."""
    return pytest.param(*values, marks=pytest.mark.long, **options)
