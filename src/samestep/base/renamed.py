"""Accepts former names of functions and arguments for one version, with a warning that has the new name."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_REMOVED_IN = "0.3"


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of the function that calls this."""
    warnings.warn(
        f"{old} is now {new}; samestep {_REMOVED_IN} removes the old name.", DeprecationWarning, stacklevel=3
    )


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of functions some of whose keyword arguments had other names before 0.2.

    `names` has the present name of each former one.

    Raises:
        TypeError: a call of the function has both names of an argument.

    Example:
        >>> send = renamed_arguments(to="dst")(lambda *, dst: dst)
        >>> with warnings.catch_warnings(record=True):
        ...     send(to=1)
        1
    """

    def accepting(fn: Callable[P, R]) -> Callable[P, R]:
        @wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(f"{fn.__qualname__}() got both {new}= and its old name {old}=")
                warn_renamed(f"{fn.__qualname__}({old}=)", f"{fn.__qualname__}({new}=)")
                kwargs[new] = kwargs.pop(old)
            return fn(*args, **kwargs)

        return call

    return accepting
