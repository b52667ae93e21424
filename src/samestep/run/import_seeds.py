"""Keeps the seeds that a script sets where it is imported, for workers that would import it again.

A process that torch spawns imports the script, so seeds outside of ``if __name__ == "__main__":`` are set in
each of them. A forked worker does not import it, and gets these seeds from here.
"""

import ast
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samestep.hooks import declarations
from samestep.hooks.registry import Hook, attached_all, wrapping

_STATES: dict[Hook, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    declarations.RANDOM_SEED: (random.getstate, random.setstate),
    declarations.NUMPY_SEED: (np.random.get_state, np.random.set_state),
    **dict.fromkeys(declarations.TORCH_MANUAL_SEEDS, (torch.get_rng_state, torch.set_rng_state)),
}
"""The functions that seed a global generator, with those that read and set its state."""


@dataclass(slots=True)
class ImportSeeds:
    """The states of global generators after the seeds that a script has set where it is imported."""

    _states: dict[Callable[[Any], Any], Any] = field(default_factory=dict)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record the seeds of the script that runs in a block."""
        with attached_all({hook: wrapping(partial(self._seeded, *how)) for hook, how in _STATES.items()}):
            yield

    def apply(self) -> None:
        """Set the recorded states in a worker."""
        for restore, state in self._states.items():
            restore(state)

    def _seeded(
        self,
        state: Callable[[], Any],
        restore: Callable[[Any], Any],
        original: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = original(*args, **kwargs)
        if _is_import():
            self._states[restore] = state()
        return found


def _is_import() -> bool:
    """Return whether a spawned process would run the present line of the script too, as it imports it."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no public spelling
    while frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") != "__main__":
        if frame.f_back is None:
            return False
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return file is not None and not any(frame.f_lineno in lines for lines in _guarded_lines(file))


@cache
def _guarded_lines(file: str) -> list[range]:
    """Return the lines of a script that run only where it is not imported."""
    return [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.parse(Path(file).read_bytes()).body
        if isinstance(node, ast.If)
        and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
    ]
