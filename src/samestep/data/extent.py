"""Checks that the images which a specification asks for can exist in this machine's memory."""

from samestep.base.errors import UsageError
from samestep.base.machine import machine
from samestep.base.units import bytes_text

MAX_SIDE = 8192
"""Pixels: a square image of this side has 192 MiB as RGB."""
MAX_CLASSES = 2**20
"""A name is kept for each of them, and a column of the last layer."""


def checked_side(side: int, spec: str) -> int:
    """Return the side of square images, in pixels.

    Args:
        side: what is asked for.
        spec: the specification, for messages.

    Raises:
        UsageError: it is larger than `MAX_SIDE`.
    """
    if side > MAX_SIDE:
        raise UsageError(f"--data {spec}: images of {side} pixels a side; use {MAX_SIDE} or fewer.")
    return side


def check_fits(spec: str, *, images: int, labels: int, classes: int) -> None:
    """Refuse images that do not fit this machine's memory, before any memory is taken.

    Args:
        spec: the specification, for messages.
        images: bytes of all of them.
        labels: bytes of all of their labels.
        classes: how many.

    Raises:
        UsageError: they do not; names both sizes.
    """
    if classes > MAX_CLASSES:
        raise UsageError(f"--data {spec}: {classes:,} classes; use {MAX_CLASSES:,} or fewer.")
    there = machine().memory_bytes
    if images + labels > there:
        raise UsageError(
            f"--data {spec} needs {bytes_text(images + labels)} for its images, and this machine has "
            f"{bytes_text(there)} of memory. Use fewer or smaller images."
        )
