"""Weights as a safetensors file, written tensor by tensor as they lie in memory.

The library's own writer wants a file, whose bytes would have to be read back to be hashed; this one writes to
anything. Reading is left to the library.

Source: the format's description, https://huggingface.co/docs/safetensors
"""

import json
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from samestep.base.errors import CheckpointError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
"""The data begins at a multiple of this many bytes."""


class Sink(Protocol):
    """Takes bytes, one piece after the other."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Take `data`."""


def write_tensors(sink: Sink, tensors: Mapping[str, Tensor]) -> None:
    """Write CPU tensors to `sink` as one safetensors file; tied ones once per name.

    ::

        8 bytes     length of the header, little-endian
        header      JSON: {name: {"dtype", "shape", "data_offsets": [from, to]}}, filled up with blanks
        data        the tensors, row by row, without gaps

    Raises:
        CheckpointError: the format has no such dtype.
    """
    # Wide types first, as the library does: then each tensor is aligned to its own width.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise CheckpointError(f"{name} is a {tensor.dtype}, which safetensors does not hold. Convert it.")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    sink.write(len(header).to_bytes(8, "little"))
    sink.write(header)
    for name in order:
        sink.write(bytes_of(tensors[name]))


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a CPU tensor in row-major order, as they lie in memory where they do."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
