"""Finds modules that a script makes again every few calls: to check each takes longer than it saves.

An integrator wraps its function in each step, and meta learning copies its model for each task. Once some
modules of a class have ended after few calls, the first calls of the next ones are computed unsplit.
"""

from collections import Counter
from weakref import WeakKeyDictionary, finalize

from torch import nn

MADE_AGAIN = "the script makes this module again every few calls"
_FEW = 64
"""Calls before which a module is not worth its check, which takes as long as tens of them."""
_ENDED = 3
"""Modules of a class that end after so few calls before the next ones wait."""


class FreshModules:
    """The calls of each module, and the classes whose modules end soon."""

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
        self._ended: Counter[type] = Counter()
        """The modules of each class in a row that have ended after few calls."""

    def waits(self, module: nn.Module) -> bool:
        """Count a call of a module, and return whether it is computed unsplit."""
        calls = self._calls.get(module)
        if calls is None:
            calls = self._calls[module] = [0]
            finalize(module, self._end, type(module), calls).atexit = False
        calls[0] += 1
        return calls[0] <= _FEW and self._ended[type(module)] >= _ENDED

    def _end(self, kind: type, calls: list[int]) -> None:
        self._ended[kind] = self._ended[kind] + 1 if calls[0] <= _FEW else 0
