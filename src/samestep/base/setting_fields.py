"""Declares settings as dataclass fields that carry their limits and their ``--help`` text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any

from samestep.base.errors import UsageError

MOST_COUNT = 10**15
"""Maximum of whole-number settings; the product of two is still exact."""


def option(  # noqa: PLR0913 - a setting has that many limits
    *,
    default: Any = MISSING,
    about: str,
    panel: str = "Training",
    metavar: str = "",
    names: Sequence[str] = (),
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    hidden: bool = False,
) -> Any:
    """Return a dataclass field with its limits.

    Args:
        default: the field is required without one.
        about: one line for ``--help``.
        panel: heading in ``--help``.
        metavar: the value in ``--help``; empty for the name of the type.
        names: the spellings of the flag; by default that of the field.
        choices: the allowed names.
        least: the smallest allowed number.
        most: the largest allowed number.
        above: exclusive lower limit.
        below: exclusive upper limit.
        hidden: whether ``--help`` leaves it out.
    """
    metadata = {
        "about": about,
        "panel": panel,
        "metavar": metavar,
        "names": tuple(names),
        "choices": tuple(choices),
        "least": least,
        "most": most,
        "above": above,
        "below": below,
        "hidden": hidden,
    }
    return field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """Return the command line's spelling of a setting."""
    return "--" + name.replace("_", "-")


def check(settings: Any) -> None:
    """Check each setting of a dataclass against its limits.

    Raises:
        UsageError: names the first one outside of its limits, and the limit.
    """
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.metadata and value is not None:
            _check(one, value)


def _check(one: Field[Any], value: Any) -> None:
    name, limits = flag(one.name), one.metadata
    choices = limits["choices"]
    several = value if isinstance(value, tuple) else (value,)
    for one_of in several:
        if choices and one_of not in choices:
            raise UsageError(f"{name} {one_of!r} is not one of {', '.join(choices)}.")
    for number in several:
        _check_range(name, number, limits)


def _check_range(name: str, number: Any, limits: Mapping[str, Any]) -> None:
    """Check a number against its limits; every comparison is false for NaN, so NaN is refused."""
    least, most, above, below = (limits[key] for key in ("least", "most", "above", "below"))
    if least is not None and not least <= number < math.inf:
        raise UsageError(f"{name} is {number}; use a number of {least} or more.")
    if above is not None and not above < number < math.inf:
        raise UsageError(f"{name} is {number}; use a number above {above}.")
    if most is None and isinstance(number, int):
        most = MOST_COUNT
    if most is not None and not number <= most:
        raise UsageError(f"{name} is {number}; use {most} or less.")
    if below is not None and not number < below:
        raise UsageError(f"{name} is {number}; use a number below {below}.")
