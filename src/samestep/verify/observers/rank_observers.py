"""Observers of the ranks of a distributed script: devices, threads, rendezvous, and what they save."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from linecache import getlines
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.autopilot.script.devices import NAMED
from samestep.base import env
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.launchers.detect import detect
from samestep.ranks.hang.script_position import current_place
from samestep.verify.observers.check import Observer, in_words
from samestep.verify.trace import Note, Place

_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".model")
_PREFIX = "module."
_COUNTS_CORES = re.compile(r"\b(?:(?:process_)?cpu_count|sched_getaffinity|cpu_affinity)\b")
"""The functions of Python, torch and psutil that count the cores."""


class DeviceOfRank(Observer):
    """Compares the number of the device with that of the rank on its node.

    With ``--device cpu``, the devices are those that the script names.
    """

    def __init__(self) -> None:
        self._local_rank = detect(env.snapshot()).place.local_rank
        self._used: set[int] = set()

    def call(
        self, module: nn.Module, inputs: Sequence[Any], *, is_training: bool
    ) -> AbstractContextManager[Any] | None:
        """See `Listener.call`."""
        del inputs
        if is_training:
            devices = {parameter.device for parameter in module.parameters()}
            self._used |= {
                device.index for device in devices if device.type == "cuda" and device.index is not None
            }
        return None

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        sees_own = torch.cuda.device_count() == 1  # by CUDA_VISIBLE_DEVICES, or no rank has another one
        if self._local_rank and (self._used or NAMED.used) == {0} and not sees_own:
            yield Note(
                "device-of-rank-0",
                "further ranks of the node use the GPU of rank 0 too. Call torch.cuda.set_device with the "
                "local rank, or move the model and the samples to that device.",
            )


class RendezvousAddress(Observer):
    """Compares the launcher's variables at the begin and at the end of the script."""

    def __init__(self) -> None:
        environment = env.snapshot()
        self._before = {name: environment.get(name) for name in _VARIABLES}

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        environment = env.snapshot()
        changed = {name: environment.get(name) for name in _VARIABLES}
        if all(self._before.values()) and changed != self._before:
            values = ", ".join(f"{name}={value}" for name, value in changed.items() if value is not None)
            yield Note(
                "own-address",
                f"the script replaces the rendezvous address of the launcher: {values}. On several nodes, or "
                "beside another run on this node, the ranks do not find each other. Use "
                "os.environ.setdefault, or leave these variables to the launcher.",
            )


class ThreadsOfRank(Observer):
    """Compares the compute threads that the script sets with the cores of the host.

    A constant number can be right on another host: the script must count the cores.
    """

    def __init__(self) -> None:
        self._local_size = detect(env.snapshot()).place.local_size
        self._set_at: Place | None = None  # the line that has set the number

    @contextmanager
    def attached(self) -> Iterator[None]:
        """See `Observer.attached`."""
        with super().attached(), attached_all({declarations.THREADS_SET: wrapping(self._set)}):
            yield

    def _set(self, original: Callable[[int], None], number: int) -> None:
        original(number)
        self._set_at = current_place()

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        threads, cores = torch.get_num_threads(), os.cpu_count() or 1
        if self._set_at is None or self._local_size == 1 or not threads >= cores > 1:
            return
        if _COUNTS_CORES.search("".join(getlines(self._set_at[0]))):
            yield Note(
                "threads-of-all-cores",
                f"each of {self._local_size} ranks of the node computes with {threads} threads"
                f"{in_words(self._set_at)}, as many as the node has cores, so they compete. Divide "
                "the cores by the number of ranks, or leave the number of threads to the launcher.",
                self._set_at,
            )


class SavedStates(Observer):
    """Reads the checkpoints that a script has written; `written` returns the paths of this rank's files."""

    def __init__(self, written: Callable[[], Iterable[str]]) -> None:
        self._written = written

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        for path in self._written():
            if path.endswith(_SUFFIXES) and any(map(_is_wrapped, dicts(_loaded(path)))):
                yield Note(
                    "module-keys",
                    f"{Path(path).name} has a state dict whose keys begin with {_PREFIX!r}, which the model "
                    "without DistributedDataParallel cannot load. Save model.module.state_dict().",
                )
                return


def _loaded(path: str) -> Any:
    """Return the contents of a checkpoint; None for any other file."""
    with suppress(Exception):  # torch raises many types of errors for files that are no checkpoints
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return None


def dicts(value: Any, *, depth: int = 2) -> Iterator[Mapping[Any, Any]]:
    """Yield a dict, and those in its values."""
    if isinstance(value, Mapping):
        yield value
        if depth:
            for part in value.values():
                yield from dicts(part, depth=depth - 1)


def _is_wrapped(state: Mapping[Any, Any]) -> bool:
    return bool(state) and all(isinstance(key, str) and key.startswith(_PREFIX) for key in state)
