"""Records the numbers that a forward reads from its samples, to branch on them.

A slice may take another branch than the whole batch, and an equivalence check sees only the branches that
its batches take::

    if (labels == PAD).any():        False in the check, True in one slice of a later batch

So the tensors that are computed from the samples are followed, and each read of one is recorded. A read that
differs between slices and the whole batch, with equal results, does not affect them. A read that is the same
everywhere is a guard of the plan: another value later ends the run with an error. Comparisons of a float that
was read, and of floats that Python computes from it, are recorded, too.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from samestep.base.errors import OutOfStep
from samestep.base.folders import PACKAGE
from samestep.hooks.tensor_tree import leaves

Site: TypeAlias = tuple[str, int, int, bool]
"""The place in the code that reads: file, line, instruction; and whether it compares a float."""
Reads: TypeAlias = Mapping[Site, Sequence[Any]]
"""The values that were read, by the place that read them."""

_READING = frozenset(
    {
        *("__bool__", "__int__", "__float__", "__index__", "item", "__contains__"),
        *("equal", "allclose", "is_nonzero"),
    }
)
_TORCH = str(FilePath(torch.__file__).parent)
_PASSING = (f"{_TORCH}/overrides.py", f"{_TORCH}/_tensor.py", __file__)
"""Code between the reading code and this module."""


class SampleReads(TorchFunctionMode):
    """A context that records the numbers that a forward reads from its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Site, list[Any]] = {}
        self._of_samples = WeakTensorKeyDictionary()

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Follow tensors that hold samples, and all tensors that are computed from them."""
        for tensor in tensors:
            self._of_samples[tensor] = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [tensor for _, tensor in leaves((args, dict(kwargs)))]
        if any(tensor in self._of_samples for tensor in tensors):
            name = getattr(func, "__name__", "")
            if name in _READING and isinstance(result, (bool, int, float)):
                return result if name == "__float__" else self._recorded(result)  # `float` makes a plain one
            if tensors and _writes(func):
                self._of_samples[tensors[0]] = True
            self.follow(tensor for _, tensor in leaves(result))
        return result

    def _recorded(self, value: float) -> Any:
        if type(value) is float:
            return WatchedFloat(value, self._note)
        self._note(value, is_comparison=False)
        return value

    def _note(self, value: Any, *, is_comparison: bool) -> None:
        site = _site(is_comparison=is_comparison)
        if site is not None:
            self.found.setdefault(site, []).append(value)


class WatchedFloat(float):
    """A float whose comparisons are recorded, and those of the floats that are computed from it."""

    _note: Callable[..., None]

    def __new__(cls, value: float, note: Callable[..., None]) -> "WatchedFloat":
        """Create a float."""
        made = super().__new__(cls, value)
        made._note = note
        return made

    def __float__(self) -> float:
        """Return a plain float."""
        return float.__add__(self, 0.0)

    def __reduce__(self) -> Any:
        """Copy and pickle as a plain float."""
        return float, (float(self),)


_WATCHED = (
    *("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__", "is_integer"),
    *("__int__", "__trunc__", "__floor__", "__ceil__", "__round__", "__neg__", "__pos__", "__abs__"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__"),
    *("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__"),
)
"""The operations of a float whose results a forward may branch on."""


def _watched(operation: Callable[..., Any]) -> Any:
    """Return an operation of a `WatchedFloat`: a float that it computes is watched, too."""

    def watch(self: WatchedFloat, *values: Any) -> Any:
        result = operation(self, *values)
        if type(result) is float:
            return WatchedFloat(result, self._note)
        if isinstance(result, int):  # a boolean, or an integer, whose comparisons are not seen
            self._note(result, is_comparison=True)
        return result

    return watch


for _name in _WATCHED:
    setattr(WatchedFloat, _name, _watched(getattr(float, _name)))


class GuardedReads(TorchFunctionMode):
    """A context that raises an error where a guarded read has another value than in the equivalence check."""

    def __init__(self, guards: Mapping[Site, Any], name: str) -> None:
        super().__init__()
        self._guards, self._name = guards, name

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function.

        Raises:
            OutOfStep: a read differs.
        """
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _READING:
            site = _site(is_comparison=False)
            if site is not None and site in self._guards and self._guards[site] != result:
                raise OutOfStep(
                    f"{self._name} branches on its samples ({place_of(site)}), and takes a branch here that "
                    f"no equivalence check has taken."
                )
        return result


class ReadRecord:
    """The reads in the comparisons of one way to split."""

    def __init__(self) -> None:
        self._free: set[Site] = set()
        self._values: dict[Site, list[Any]] = {}

    def add(self, whole: Reads, parts: Sequence[Reads]) -> None:
        """Add the reads of an unsplit call and of all slices, which gave the same results.

        In a loop over samples a slice reads fewer times, so only other values count as a difference.
        """
        for site in dict.fromkeys(site for reads in (whole, *parts) for site in reads):
            values = list(whole.get(site, ()))
            of_parts = [list(reads.get(site, ())) for reads in parts]
            is_constant = len({*values, *(value for part in of_parts for value in part)}) == 1
            if not (is_constant and all(of_parts)) and any(part != values for part in of_parts):
                self._free.add(site)
            self._values.setdefault(site, []).extend(values)

    def guards(self, *, is_compiled: bool = False) -> dict[Site, Any] | str:
        """Return the values that reads must have, or the reason why the module cannot be split."""
        guards: dict[Site, Any] = {}
        for site, values in self._values.items():
            if site in self._free or not values:
                continue
            if is_compiled or site[3] or any(value != values[0] for value in values):
                return f"it branches on its samples ({place_of(site)})"
            guards[site] = values[0]
        return guards


def place_of(site: Site) -> str:
    """Return the file and the line of a read."""
    return f"{FilePath(site[0]).name}:{site[1]}"


def _writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _site(*, is_comparison: bool) -> Site | None:
    """Return the place of the reading code; None for code of torch and samestep."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no public spelling that is as fast
    while frame is not None and frame.f_code.co_filename in _PASSING:
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((f"{_TORCH}/", f"{PACKAGE}/")):
        return None
    return frame.f_code.co_filename, frame.f_lineno, frame.f_lasti, is_comparison
