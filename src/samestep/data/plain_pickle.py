"""Reading pickles of arrays that somebody else has made, without running their code."""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from samestep.base.errors import DataError


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes as Python 3 writes them for Python 2, and no other codec's."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding}")
    return text.encode("latin1")


_RECONSTRUCT = np.ndarray(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
"""What a pickled array is put together with; all else could be anything."""


class _Arrays(pickle.Unpickler):
    """Knows arrays and what needs no names: numbers, strings, lists and dicts."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle may call."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


_MOST_STEPS = 500_000
"""Of a pickle; a batch of CIFAR-10 has some ten thousand."""


def _check_steps(content: bytes) -> None:
    """Refuse too many steps, and a memo numbered far beyond what it can hold: five bytes would take 64 GB.

    Raises:
        ValueError: there are, or it is, or the pickle is damaged.
    """
    for number, (opcode, place, _) in enumerate(pickletools.genops(content)):
        if number > _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS:,} steps")
        if opcode.name in ("PUT", "LONG_BINPUT") and place is not None and place > len(content):
            raise ValueError(f"it numbers its values up to {place:,}, and has {len(content):,} bytes")


def load_arrays(content: bytes, where: str) -> Any:
    """Return what a pickle of arrays and plain values holds; strings of Python 2 come as bytes.

    Args:
        content: the pickle.
        where: where it came from, for messages.

    Raises:
        DataError: it holds anything else, or is damaged. Nothing of it was run.
    """
    try:
        _check_steps(content)
        return _Arrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise anything
        raise DataError(
            f"{where} is refused: it is no pickle of arrays and plain values ({type(error).__name__}: "
            f"{error}). Use the published file."
        ) from None
