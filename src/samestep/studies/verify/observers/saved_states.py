"""Notes saved state dicts whose keys begin with the prefix of a wrapper."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from samestep.studies.verify.observers.observer import Observer
from samestep.studies.verify.trace import Note

_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".model")
_PREFIX = "module."


class SavedStates(Observer):
    """Reads the checkpoints that a script has written.

    Args:
        written: returns the paths of the files that this rank has written.
    """

    def __init__(self, written: Callable[[], Iterable[str]]) -> None:
        self._written = written

    def notes(self) -> Iterator[Note]:
        """See `Observer.notes`."""
        for path in self._written():
            if path.endswith(_SUFFIXES) and any(map(_is_wrapped, _dicts(_loaded(path)))):
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


def _dicts(value: Any, *, depth: int = 2) -> Iterator[Mapping[Any, Any]]:
    """Yield a dict, and those in its values."""
    if isinstance(value, Mapping):
        yield value
        if depth:
            for one in value.values():
                yield from _dicts(one, depth=depth - 1)


def _is_wrapped(state: Mapping[Any, Any]) -> bool:
    return bool(state) and all(isinstance(key, str) and key.startswith(_PREFIX) for key in state)
