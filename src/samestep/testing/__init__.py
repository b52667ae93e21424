"""Conformance checks for user-defined collectives."""

from samestep.testing.checks import (
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
    "Nonconforming",
    "check_all_gather",
    "check_all_reduce",
    "check_broadcast",
    "check_gather",
    "check_reduce",
    "check_reduce_scatter",
    "check_scatter",
]
