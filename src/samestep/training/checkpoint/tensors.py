"""Writes tensors in the safetensors format to any sink, without an intermediate copy.

The library's own writer needs a file, which would have to be read back for its checksum. The library reads.

Source: the format's description, https://huggingface.co/docs/safetensors
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Protocol

import safetensors.torch
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.parallel.weights_digest import tensor_bytes

_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of dtypes in the format; some versions of the library do not read all of them."""
_ALIGNMENT = 8
"""Alignment of the data in bytes."""


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append `data`."""


def write_tensors(sink: Sink, tensors: Mapping[str, Tensor]) -> None:
    """Write CPU tensors to `sink` as one safetensors file; tied ones once per name.

    ::

        8 bytes     length of the header, little-endian
        header      JSON: {name: {"dtype", "shape", "data_offsets": [from, to]}}, padded with spaces
        data        the tensors in row-major order, without gaps

    Raises:
        CheckpointError: see `check_dtype`.
    """
    # Wide types first, as in the library, so that each tensor is aligned to its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor = tensors[name]
        check_dtype(name, tensor.dtype)
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    sink.write(_header(entries))
    for name in order:
        sink.write(tensor_bytes(tensors[name]))


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Refuse a dtype that cannot be read back.

    Raises:
        CheckpointError: the format has no such dtype, or the installed library does not read it.
    """
    if dtype not in _NAMES:
        raise CheckpointError(f"{name} is a {dtype}, which safetensors does not support. Convert it.")
    if not _is_read_back(dtype):
        raise CheckpointError(
            f"{name} is a {dtype}, which safetensors {safetensors.__version__} does not read. Update it, or "
            "convert the tensor."
        )


@cache
def _is_read_back(dtype: torch.dtype) -> bool:
    """Return whether the library reads a tensor of one element with the dtype it was written with."""
    size = torch.empty(0, dtype=dtype).element_size()
    header = _header({"t": {"dtype": _NAMES[dtype], "shape": [1], "data_offsets": [0, size]}})
    try:
        return safetensors.torch.load(header + bytes(size))["t"].dtype == dtype
    except Exception:  # noqa: BLE001 - versions raise different exceptions
        return False


def _header(entries: Mapping[str, object]) -> bytes:
    """Return the first two parts of a file."""
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
