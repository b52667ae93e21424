"""A copy of a run's state that the next step cannot touch, in memory that is used again and again."""

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from samestep.base.errors import CheckpointError
from samestep.checkpoint.archive import PLAIN
from samestep.checkpoint.snapshot import Snapshot
from samestep.checkpoint.tensors import check_dtype

_PINNED = frozenset({"cuda", "xpu"})
"""Kinds of devices that copy into page-locked memory by themselves, while the host goes on."""
_Buffers: TypeAlias = dict[tuple[int, bool], Tensor]
"""Memory by the number of what was copied there, and whether it is page-locked."""


class Stage:
    """Copies snapshots to the CPU, each into the memory of the one before.

    A copy costs the caller one pass over the memory, 10 ms for 100 MB (measured). From an accelerator it is
    only begun: it is the device that copies, in the order of its queue, so that a later step cannot come
    first. `settle` waits for it.
    """

    def __init__(self) -> None:
        self._buffers: _Buffers = {}
        self._copied: torch.Event | None = None

    def take(self, snapshot: Snapshot) -> Snapshot:
        """Return a copy of `snapshot`; the one returned before must not be in use any more.

        Raises:
            CheckpointError: it holds something that could not be read back, or not without running code;
                told by its path, before anything is copied over.
        """
        kept = _Copies(self._buffers)
        copy = Snapshot(
            model=kept.tensors("model", snapshot.model),
            optimizer=kept.tree("optimizer", snapshot.optimizer),
            state=_json_copy(snapshot.state),
            average=None if snapshot.average is None else kept.tensors("average", snapshot.average),
        )
        self._buffers = kept.buffers
        self._copied = kept.copy_all()
        return copy

    def settle(self) -> None:
        """Wait until the copies are there."""
        if self._copied is not None:
            self._copied.synchronize()


class _Copies:
    """The tensors of one snapshot and where each is copied to; memory is found again by their order."""

    def __init__(self, before: _Buffers) -> None:
        self.buffers: _Buffers = {}
        self._before = before
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def tensors(self, path: str, values: Mapping[str, Any]) -> dict[str, Tensor]:
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise CheckpointError(
                    f"{name} in the state dict of the {path} is a {type(value).__name__}, not a tensor: it "
                    "cannot be saved. Leave it out, or hand it over as part of the state."
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
        """Copy, or begin to; return what tells the end of what was only begun."""
        devices = {source.device for source, _ in self._pairs if source.device.type in _PINNED}
        with torch.no_grad():
            for source, buffer in self._pairs:
                buffer.copy_(source, non_blocking=source.device in devices)
        if not devices:
            return None
        event = torch.Event(devices.pop())  # a rank has one
        event.record()
        return event

    def _tensor(self, path: str, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise CheckpointError(
                f"{path} is a {tensor.layout} tensor on {tensor.device}: only plain tensors can be saved. "
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
    """Return a plain value, one of numpy or of a subclass as its plain relative."""
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
        f"{path} is a {type(value).__module__}.{type(value).__name__}, which could not be read back without "
        "running code: it cannot be saved. Use tensors, numbers, strings, lists and dicts."
    )


def _json_copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _through_json(name, value) for name, value in state.items()}


def _through_json(name: str, value: Any) -> Any:
    """Return what JSON makes of a value: of numpy's numbers plain ones, of a tuple a list, else the same."""
    try:
        _refuse_other_keys(value)
        return json.loads(json.dumps(value, default=_number))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{name}={value!r:.80} cannot be saved: JSON does not hold it ({error}). Use numbers, strings, "
            "lists and dicts."
        ) from error


def _number(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | float | str):
        return plain
    raise TypeError(f"a {type(value).__name__} is no number, string, list or dict")


def _refuse_other_keys(value: Any) -> None:
    """Raise where a key is no string: JSON would make one of it, and 1 and "1" the same."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.40} is no string")
            _refuse_other_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_other_keys(item)
