"""Checks that labels are class indices, and names the first invalid one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.base.errors import DataError

_LONGEST = 40
"""Maximum characters of a label in a message."""


def checked_labels(labels: Sequence[Any] | NDArray[Any], *, classes: int, where: object) -> NDArray[np.int64]:
    """Return labels as an array.

    Args:
        labels: of all samples, in order.
        classes: number of classes.
        where: the file of the labels, for messages.

    Raises:
        DataError: a label is not an integer from 0 to the last class; names the first one.
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "ui" and labels.ndim == 1:
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        index = int(wrong[0]) if len(wrong) else None
    else:
        index = next((k for k, one in enumerate(labels) if not _is_class(one, classes)), None)
    if index is None:
        return np.asarray(labels, dtype=np.int64)
    found = str(labels[index])[:_LONGEST]
    raise DataError(
        f"{where}: the label of image {index} is {found}, and classes are numbered from 0 to {classes - 1}. "
        "Use the published file, or correct the label."
    )


def _is_class(label: Any, classes: int) -> bool:
    is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
    return is_number and bool(0 <= label < classes)
