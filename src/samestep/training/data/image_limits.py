"""Checks that the images of a specification fit into this machine's memory."""

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.base.units import bytes_text

MAX_SIDE = 8192
"""Maximum side of images in pixels; a square RGB image of this side has 192 MiB."""
MAX_CLASSES = 2**20
"""Maximum number of classes."""


def checked_side(side: int, spec: str) -> int:
    """Return the side of square images, in pixels.

    Args:
        side: the requested side.
        spec: the specification, for messages.

    Raises:
        UsageError: it is larger than `MAX_SIDE`.
    """
    if side > MAX_SIDE:
        raise UsageError(f"--data {spec}: images have {side} pixels a side; use {MAX_SIDE} or fewer.")
    return side


def check_fits(spec: str, *, images: int, labels: int, classes: int) -> None:
    """Refuse images that do not fit into this machine's memory.

    Args:
        spec: the specification, for messages.
        images: bytes of all images.
        labels: bytes of all labels.
        classes: number of classes.

    Raises:
        UsageError: they do not fit, or there are too many classes; names the sizes.
    """
    if classes > MAX_CLASSES:
        raise UsageError(f"--data {spec} has {classes:,} classes; use {MAX_CLASSES:,} or fewer.")
    there = machine().memory_bytes
    if images + labels > there:
        raise UsageError(
            f"--data {spec} needs {bytes_text(images + labels)} for its images, and this machine has "
            f"{bytes_text(there)} of memory. Use fewer or smaller images."
        )
