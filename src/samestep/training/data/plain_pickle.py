"""Reads third-party pickles of arrays without executing their code."""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from samestep.base.errors import DataError


def _encode(text: str, encoding: str) -> bytes:
    """Encode as latin1, which Python 3 uses for bytes in pickles for Python 2; refuse other codecs."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it needs the codec {encoding}")
    return text.encode("latin1")


_RECONSTRUCT = np.ndarray(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
"""The only names that a pickled array needs."""


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler of arrays, numbers, strings, lists and dicts."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed callable."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it needs {module}.{name}")
        return _ALLOWED[module, name]


_MOST_OPCODES = 500_000  # maximum opcodes of a pickle; a batch of CIFAR-10 has about ten thousand


def _check_opcodes(content: bytes) -> None:
    """Refuse too many opcodes, and a memo index beyond the pickle's size: five bytes could allocate 64 GB.

    Raises:
        ValueError: there is one of these, or the pickle is damaged.
    """
    for number, (opcode, index, _) in enumerate(pickletools.genops(content)):
        if number > _MOST_OPCODES:
            raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes")
        if opcode.name in ("PUT", "LONG_BINPUT") and index is not None and index > len(content):
            raise ValueError(f"it has a memo index of {index:,} in {len(content):,} bytes")


def load_arrays(content: bytes, where: str) -> Any:
    """Return the arrays and plain values in a pickle; strings of Python 2 are returned as bytes.

    Raises:
        DataError: it contains anything else, or is damaged. No code of it is executed.
    """
    try:
        _check_opcodes(content)
        return _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        raise DataError(
            f"{where} is refused: it is not a pickle of arrays and plain values ({type(error).__name__}: "
            f"{error}). Use the published file."
        ) from None
