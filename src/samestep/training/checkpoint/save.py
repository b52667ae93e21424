"""Copies the state of a run, and writes it as a checkpoint: atomically, with size and sha256 of every file.

The copy is in reused CPU memory, so that the next step cannot change it while a thread writes.

A checkpoint is a folder::

    step-120/
      model.safetensors     the state dict, with the serial script's keys
      optimizer.pt          state of optimizer, schedule and scaler, random state of each rank;
                            torch.save's form, read with weights_only
      average.safetensors   averaged weights, if the run has them
      state.json            progress of the training: step, seed, epoch, samples, ...
      manifest.json         size and sha256 of the files above; written last
      .samestep             the mark of the run that made the folder; see `checkpoint_folders`

Tensors are written in the safetensors format (https://huggingface.co/docs/safetensors) while they are hashed;
the library's own writer needs a file, which would have to be read back for its checksum.
"""

import hashlib
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.parallel.gradients.agreement import tensor_bytes
from samestep.training.checkpoint.checkpoint_folders import whole_or_absent
from samestep.training.checkpoint.read import PLAIN, parse_state
from samestep.training.checkpoint.snapshot import (
    AVERAGE,
    FORMAT,
    MANIFEST,
    MODEL,
    MOST_STATE,
    OPTIMIZER,
    STATE,
    Seal,
    Snapshot,
    manifest_text,
)

_PINNED = frozenset({"cuda", "xpu"})  # device types that copy asynchronously to pinned memory
_Buffers: TypeAlias = dict[tuple[int, bool], Tensor]
"""Copies by the index of their tensor, and whether the memory is pinned."""


class Stage:
    """Memory for a copy of a snapshot on the CPU, reused by the next one.

    A copy costs the caller one pass over the memory, 10 ms for 100 MB (measured). Copies from an accelerator
    are asynchronous: they are queued on the device before any later step, and `settle` waits for them.
    """

    def __init__(self) -> None:
        self._buffers: _Buffers = {}
        self._copied: torch.Event | None = None

    def take(self, snapshot: Snapshot) -> Snapshot:
        """Return a copy of `snapshot`, which overwrites the previous copy.

        Raises:
            CheckpointError: it contains something that cannot be read back without executing code; names its
                path. Nothing is overwritten then.
        """
        kept = _Copies(self._buffers)
        copy = Snapshot(
            model=kept.tensors("model", snapshot.model),
            optimizer=kept.tree("optimizer", snapshot.optimizer),
            state={name: _through_json(name, value) for name, value in snapshot.state.items()},
            average=None if snapshot.average is None else kept.tensors("average", snapshot.average),
        )
        self._buffers = kept.buffers
        self._copied = kept.copy_all()
        return copy

    def settle(self) -> None:
        """Wait until the copies are complete."""
        if self._copied is not None:
            self._copied.synchronize()


class _Copies:
    """The tensors of one snapshot and the buffer of each, reused from the previous snapshot by index."""

    def __init__(self, before: _Buffers) -> None:
        self.buffers: _Buffers = {}
        self._before = before
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def tensors(self, path: str, values: Mapping[str, Any]) -> dict[str, Tensor]:
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise CheckpointError(
                    f"{name} in the state dict of the {path} is a {type(value).__name__}, not a tensor, and "
                    "cannot be saved. Omit it, or pass it as part of the state."
                )
            check_dtype(f"{path}.{name}", value.dtype)
        return {name: self._tensor(f"{path}.{name}", value) for name, value in values.items()}

    def tree(self, path: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(path, value)
        if isinstance(value, Mapping):
            items = {
                _plain(f"a key of {path}", key): self.tree(f"{path}.{key}", item)
                for key, item in value.items()
            }
            for kind in (Counter, OrderedDict):  # MultiStepLR's milestones are a Counter
                if isinstance(value, kind):
                    return kind(items)
            return items
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            copies = [self.tree(f"{path}.{index}", item) for index, item in enumerate(value)]
            return copies if isinstance(value, list) else tuple(copies)
        return _plain(path, value)

    def copy_all(self) -> torch.Event | None:
        """Copy all tensors; return an event that marks the end of asynchronous copies, or None."""
        devices = {source.device for source, _ in self._pairs if source.device.type in _PINNED}
        with torch.no_grad():
            for source, buffer in self._pairs:
                buffer.copy_(source, non_blocking=source.device in devices)
        if not devices:
            return None
        event = torch.Event(devices.pop())  # a rank has one device
        event.record()
        return event

    def _tensor(self, path: str, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise CheckpointError(
                f"{path} is a {tensor.layout} tensor on {tensor.device}; only plain tensors can be saved. "
                "Convert it first."
            )
        key = len(self._pairs), tensor.device.type in _PINNED
        buffer = self._before.get(key)
        if buffer is None or (buffer.shape, buffer.dtype, buffer.stride()) != (
            tensor.shape,
            tensor.dtype,
            tensor.stride(),
        ):
            buffer = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=key[1])
        self.buffers[key] = buffer
        self._pairs.append((tensor.detach(), buffer))
        return buffer


def _plain(path: str, value: Any) -> Any:
    """Return a plain value, converted from numpy's types and from subclasses."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in PLAIN:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise CheckpointError(
        f"{path} is a {type(value).__module__}.{type(value).__name__}, which cannot be read back without "
        "executing code. Use tensors, numbers, strings, lists and dicts."
    )


def _through_json(name: str, value: Any) -> Any:
    """Return a value as JSON stores it: numpy's numbers as plain ones, tuples as lists."""
    try:
        _refuse_other_keys(value)
        return parse_state(json.dumps(value, default=_number))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{name}={value!r:.80} cannot be saved as JSON ({error}). Use numbers, strings, lists and dicts."
        ) from error


def _number(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | float | str):
        return plain
    raise TypeError(f"a {type(value).__name__} is not a number, string, list or dict")


def _refuse_other_keys(value: Any) -> None:
    """Raise if a key is not a string, because JSON converts it, and 1 and "1" become equal."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.40} is not a string")
            _refuse_other_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_other_keys(item)


_PIECE = 1 << 20  # bytes hashed and written at a time, small enough to stay in the CPU cache


class SealedFile:
    """A new file that is hashed while it is written, so that it need not be read back.

    It is a context manager; after the block `seal` is final and the bytes are on disk.
    """

    def __init__(self, path: Path) -> None:
        self._stream = path.open("xb")
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._failed: OSError | None = None

    @property
    def seal(self) -> Seal:
        """Size and digest of what has been written so far."""
        return Seal(self._bytes, self._digest.hexdigest())

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`, any buffer, in pieces, so that other threads can run in between."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                self._digest.update(piece)
                self._stream.write(piece)
        except OSError as error:
            self._failed = error
            raise
        self._bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Flush the stream's buffer to the system."""
        self._stream.flush()

    def __enter__(self) -> "SealedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._stream.flush()
                os.fsync(self._stream.fileno())
        finally:
            # Closing would raise the error of a full disk again.
            with suppress(OSError):
                self._stream.close()
        if self._failed is not None and error is not self._failed:
            raise self._failed  # torch.save's own error only names an incomplete archive


def write_staged(snapshot: Snapshot, folder: Path) -> Path:
    """Write a snapshot that a `Stage` has taken as checkpoint `folder`; called on one rank.

    Tied weights are written once per name. An existing folder of this run is replaced when the new checkpoint
    is complete and on disk.

    Raises:
        CheckpointError: the folder cannot be written, or exists and is not this run's.
    """
    try:
        with whole_or_absent(folder) as draft:
            seals = _write_files(snapshot, draft)
            with SealedFile(draft / MANIFEST) as file:
                file.write(manifest_text(seals).encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise CheckpointError(f"cannot write the checkpoint {folder}: {why}.") from error
    return folder


def _write_files(snapshot: Snapshot, draft: Path) -> dict[str, Seal]:
    text = (json.dumps({**snapshot.state, "format": FORMAT}, indent=2) + "\n").encode()
    if len(text) > MOST_STATE:
        raise CheckpointError(
            f"the state of the training has {len(text):,} bytes as JSON, more than the maximum "
            f"{MOST_STATE:,}. Save tensors as part of a state dict."
        )
    writers: dict[str, Callable[[SealedFile], object]] = {
        MODEL: partial(write_tensors, tensors=snapshot.model),
        OPTIMIZER: partial(torch.save, snapshot.optimizer),
        STATE: lambda file: file.write(text),
    }
    if snapshot.average is not None:
        writers[AVERAGE] = partial(write_tensors, tensors=snapshot.average)
    seals = {}
    for name, write in writers.items():
        with SealedFile(draft / name) as file:
            write(file)
        seals[name] = file.seal
    return seals


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
_ALIGNMENT = 8  # alignment of the data in bytes


def write_tensors(file: SealedFile, tensors: Mapping[str, Tensor]) -> None:
    """Write CPU tensors to `file` as one safetensors file; tied ones once per name.

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
    file.write(_header(entries))
    for name in order:
        file.write(tensor_bytes(tensors[name]))


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
    size = torch.empty(0, dtype=dtype, device="cpu").element_size()
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
