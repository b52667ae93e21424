"""Conformance checks for user-defined collectives."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep_lab.testing.checks import (
        Check,
        Nonconforming,
        check_all_gather,
        check_all_reduce,
        check_broadcast,
        check_gather,
        check_reduce,
        check_reduce_scatter,
        check_scatter,
    )

__all__ = [
    "Check",
    "Nonconforming",
    "check_all_gather",
    "check_all_reduce",
    "check_broadcast",
    "check_gather",
    "check_reduce",
    "check_reduce_scatter",
    "check_scatter",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, because it imports torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("samestep_lab.testing.checks"), name)
