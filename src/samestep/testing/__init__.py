"""Conformance checks for user-defined collectives."""

from samestep.base.errors import Nonconforming
from samestep.testing.checks import (
    Check,
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
