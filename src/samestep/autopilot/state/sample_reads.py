"""Records the numbers that a forward reads from its samples, to branch on them.

A slice may take another branch than the whole batch, and an equivalence check sees only the branches that
its batches take::

    if (labels == PAD).any():        False in the check, True in one slice of a later batch

So the tensors that are computed from the samples are followed, and each read of one is recorded. A read that
differs between slices and the whole batch, with equal results, does not affect them. A read that is the same
everywhere is a guard of the plan: another value later ends the run with an error. Comparisons of a number
that was read, and of numbers that Python computes from it, are recorded, too: the read may differ between
slices in a check, and the branch only later.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dis import Instruction, get_instructions, opname
from functools import cache
from pathlib import Path as FilePath
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from samestep.base.errors import OutOfStep
from samestep.base.folders import PACKAGE
from samestep.hooks.tensor_tree import leaves


class Site(NamedTuple):
    """The place in the code that reads a number, or compares one that was read."""

    file: str
    line: int
    instruction: int
    kind: str
    """One of the kinds below."""


_READ, _LIST, _COMPARISON = "read", "list", "comparison"
"""A read of one number, or of the numbers in a list; a comparison of a number that Python has."""
Stems: TypeAlias = frozenset[Site] | None
"""The reads from which a number stems; None if one is that of a single float, which has no guard."""


@dataclass(slots=True)
class Reads:
    """The reads of a call, and the comparisons of what it has read."""

    values: dict[Site, list[Any]] = field(default_factory=dict)
    """The values that were read, and the results of comparisons, by their place."""
    stems: dict[Site, Stems] = field(default_factory=dict)
    """Of each comparison the reads from which its numbers stem."""
    are_of_others: bool = False
    """Whether forward may branch later on what is not in `values`: on numbers of other tensors, such as
    weights, on the number of elements that it selects, or on an array of NumPy."""

    def add(self, site: Site, value: Any) -> None:
        """Add a value."""
        self.values.setdefault(site, []).append(value)

    def add_stems(self, site: Site, stems: Stems) -> None:
        """Add the reads from which a compared number stems."""
        self.stems[site] = _united(self.stems.get(site, frozenset()), stems)


_READING = frozenset(
    {
        *("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "__contains__"),
        *("equal", "allclose", "is_nonzero"),
    }
)
_READING_OTHERS = _READING | {"numpy", "__array__"}
_SELECTING = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
"""Functions that return as many elements as the values of a tensor decide; a mask as an index does, too."""
_TORCH = str(FilePath(torch.__file__).parent)
_PASSING = (f"{_TORCH}/overrides.py", f"{_TORCH}/_tensor.py", __file__)
"""Code between the reading code and this module."""
_MOST_OF_LIST = 1 << 12
"""Elements of a tensor whose list of numbers is watched: a guess."""


class SampleReads(TorchFunctionMode):
    """A context that records the numbers that a forward reads from its samples.

    Where `watches` is set, the numbers are watched: forward gets an `int` or a `float` of a derived class. So
    that none of them comes into the script, the results of such a call must not be used.
    """

    def __init__(self, *, watches: bool = True) -> None:
        super().__init__()
        self.found = Reads()
        self._watches = watches
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
            if name == "__get__" and getattr(func, "__self__", None) is Tensor.grad:
                Watch(self.found, None).note(result is None, ())  # a slice has none
            if isinstance(result, list) and name == "tolist":
                return self._listed(result, tensors[0])
            if name in _READING and isinstance(result, (bool, int, float)):
                return self._recorded(result, name)
            if _reads_unseen(name, args):
                self.found.are_of_others = True
            if tensors and _writes(func):
                self._of_samples[tensors[0]] = True
            self.follow(tensor for _, tensor in leaves(result))
        elif tensors and getattr(func, "__name__", "") in _READING_OTHERS and _site(_READ) is not None:
            self.found.are_of_others = True
        return result

    def _recorded(self, value: float, name: str) -> Any:
        if name == "__float__":  # `float` makes a plain one
            return value
        if type(value) is float:
            return Watch(self.found, None)(value) if self._watches else value
        site = _site(_READ)
        if site is None:
            return value
        self.found.add(site, value)
        # `int`, `range` and slices take plain integers.
        is_watched = self._watches and name in ("item", "tolist")
        return Watch(self.found, frozenset({site}))(value) if is_watched else value

    def _listed(self, values: list[Any], tensor: Tensor) -> Any:
        """Return the numbers of a list, which have no guard: a slice has fewer of them."""
        site = _site(_LIST)
        if site is None or not self._watches or tensor.numel() > _MOST_OF_LIST:
            return values
        watch = Watch(self.found, frozenset({site}))

        def watched(part: Any) -> Any:
            if isinstance(part, list):
                return [*map(watched, part)]
            self.found.add(site, part)
            return watch(part)

        return watched(values)


def _reads_unseen(name: str, args: Sequence[Any]) -> bool:
    """Return whether a function with samples gives forward what it may branch on, but no number."""
    if name in ("numpy", "__array__") or name in _SELECTING or (name == "where" and len(args) == 1):
        return True
    masks = leaves(args[1:]) if name == "__getitem__" else ()
    return any(mask.dtype == torch.bool for _, mask in masks)


class Watch:
    """Watches numbers that stem from the same reads."""

    def __init__(self, reads: Reads, stems: Stems) -> None:
        self._reads, self._stems = reads, stems

    def __call__(self, value: Any) -> Any:
        """Return a number as a watched one; booleans and all others as they are."""
        kind = {int: WatchedInt, float: WatchedFloat}.get(type(value))
        if kind is None:
            return value
        made = kind(value)
        made.watch = self
        return made

    def with_stems_of(self, values: Iterable[Any]) -> "Watch":
        """Return the watch of a number that is computed from other numbers, too."""
        stems = self._stems
        for value in values:
            if isinstance(value, (WatchedInt, WatchedFloat)):
                stems = _united(stems, value.watch._stems)  # noqa: SLF001 - of the same class
        return self if stems == self._stems else Watch(self._reads, stems)

    def note(self, result: Any, values: Sequence[Any]) -> None:
        """Record the result of a comparison with values."""
        frame, site = _reading_frame(), _site(_COMPARISON)
        if frame is None or site is None:
            return
        if self._stems is not None:
            is_among_watched = bool(values) and all(isinstance(value, WatchedInt) for value in values)
            if is_among_watched and _calls(frame.f_code, frame.f_lasti):
                return  # `max` of watched numbers is one of them, and is watched itself
            if _raises(frame.f_code, frame.f_lasti):
                return  # where a slice raises, the call is computed unsplit
        self._reads.add(site, result)
        self._reads.add_stems(site, self._stems)


class WatchedInt(int):
    """An integer whose comparisons are recorded, and those of the numbers that are computed from it."""

    watch: Watch
    __hash__ = int.__hash__

    def __reduce__(self) -> Any:
        """Copy and pickle as a plain integer."""
        return int, (int(self),)


class WatchedFloat(float):
    """A float whose comparisons are recorded, and those of the numbers that are computed from it."""

    watch: Watch
    __hash__ = float.__hash__

    def __float__(self) -> float:
        """Return a plain float."""
        return float.__add__(self, 0.0)

    def __reduce__(self) -> Any:
        """Copy and pickle as a plain float."""
        return float, (float(self),)


_COMPARING = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__")
_COMPUTING = (
    *("__trunc__", "__floor__", "__ceil__", "__round__", "__neg__", "__pos__", "__abs__"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__divmod__"),
    *("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__"),
    "__rdivmod__",
)
_OF_FLOAT = (*_COMPARING, *_COMPUTING, "is_integer", "__int__")
_OF_INT = (
    *(*_COMPARING, *_COMPUTING, "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__invert__"),
    *("__rand__", "__ror__", "__rxor__", "__rlshift__", "__rrshift__", "bit_length"),
)
"""The operations of a number whose results a forward may branch on."""


def _watched(name: str, kind: type) -> Any:
    """Return an operation of a watched number: a number that it computes is watched, too."""
    operation = getattr(kind, name)

    def watched(self: Any, *values: Any) -> Any:
        result = operation(self, *values)
        if result is NotImplemented and isinstance(values[0], float) and hasattr(float, name):
            result = getattr(float, name)(float(self), values[0])  # an integer leaves it to the float
        watch = self.watch.with_stems_of(values)
        if isinstance(result, bool) or name == "__int__":  # `int` makes a plain one
            watch.note(result, values)
            return result
        return tuple(map(watch, result)) if isinstance(result, tuple) else watch(result)

    return watched


for _kind, _names, _of in (WatchedFloat, _OF_FLOAT, float), (WatchedInt, _OF_INT, int):
    for _name in _names:
        setattr(_kind, _name, _watched(_name, _of))


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
            site = _site(_READ)
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
        """The places whose values differ between slices and the whole batch."""
        self._of_batch: set[Site] = set()
        """The places with other values than one for each sample."""
        self._values: dict[Site, list[Any]] = {}
        self._stems: dict[Site, Stems] = {}
        self.are_of_others = False
        """Whether forward reads numbers that are not of its samples."""

    def add(self, whole: Reads, parts: Sequence[Reads]) -> None:
        """Add the reads of an unsplit call and of all slices, which gave the same results.

        In a loop over samples a slice reads fewer times, so only other values count as a difference.
        """
        for site in dict.fromkeys(site for reads in (whole, *parts) for site in reads.values):
            values = whole.values.get(site, [])
            of_parts = [reads.values.get(site, []) for reads in parts]
            of_all = [value for part in of_parts for value in part]
            is_constant = len({*values, *of_all}) == 1
            # A slice that has not come to a comparison does not show that another result has no effect.
            is_everywhere = site.kind == _COMPARISON or all(of_parts)
            if not (is_constant and is_everywhere) and any(part != values for part in of_parts):
                self._free.add(site)
            if values != of_all:
                self._of_batch.add(site)
            self._values.setdefault(site, []).extend(values)
        for reads in (whole, *parts):
            for site, stems in reads.stems.items():
                self._stems[site] = _united(self._stems.get(site, frozenset()), stems)

    def guards(self, *, is_compiled: bool = False) -> dict[Site, Any] | str:
        """Return the values that reads must have, or the reason why the module cannot be split."""
        guards: dict[Site, Any] = {}
        for site, values in self._values.items():
            is_comparison = site.kind == _COMPARISON
            if site.kind == _LIST or site in self._free or not values:
                continue
            if is_comparison and not self._counts(site):
                continue
            if is_compiled or is_comparison or any(value != values[0] for value in values):
                return f"it branches on its samples ({place_of(site)})"
            guards[site] = values[0]
        return guards

    def _counts(self, comparison: Site) -> bool:
        """Return whether a comparison may have another result in a slice than in the whole batch.

        It has the same one if the reads are guarded by their values, or if each sample compares its own.
        """
        stems = self._stems[comparison]
        if stems is None:
            return True
        is_free = any(site.kind == _LIST or site in self._free for site in stems)
        return is_free and not self._of_batch.isdisjoint({comparison, *stems})


def place_of(site: Site) -> str:
    """Return the file and the line of a read."""
    return f"{FilePath(site[0]).name}:{site[1]}"


def _writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _united(first: Stems, second: Stems) -> Stems:
    return None if first is None or second is None else first | second


def _calls(code: CodeType, instruction: int) -> bool:
    """Return whether an instruction calls a function that compares, such as `max`."""
    return opname[code.co_code[instruction]].startswith("CALL")


@cache
def _raises(code: CodeType, instruction: int) -> bool:
    """Return whether an instruction compares to raise an error, as in an assertion."""
    following = [each for each in get_instructions(code) if each.offset > instruction]
    jump = next((each for each in following if each.opname not in ("TO_BOOL", "CACHE")), None)
    if jump is None or not jump.opname.startswith("POP_JUMP"):
        return False
    return any(
        _is_raise(each for each in following if each.offset >= start)
        for start in (jump.offset + 1, jump.argval)
    )


def _is_raise(instructions: Iterable[Instruction]) -> bool:
    """Return whether instructions raise an error before they jump, return or store anything."""
    for each in instructions:
        if each.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in each.opname or each.opname.startswith(("RETURN", "STORE", "FOR_ITER", "POP_TOP")):
            return False
    return False


def _site(kind: str) -> Site | None:
    """Return the place of the reading code; None for code of torch and samestep."""
    frame = _reading_frame()
    if frame is None or frame.f_code.co_filename.startswith((f"{_TORCH}/", f"{PACKAGE}/")):
        return None
    code, instruction = frame.f_code, frame.f_lasti
    if kind == _COMPARISON:
        instruction = _first_alike(code, instruction, frame.f_lineno)
    return Site(code.co_filename, frame.f_lineno, instruction, kind)


@cache
def _first_alike(code: CodeType, instruction: int, line: int) -> int:
    """Return the first instruction for the same part of the source: a loop tests its condition at two."""
    if sys.version_info >= (3, 11):
        positions = [*code.co_positions()]
        return positions.index(positions[instruction // 2])
    return -line


def _reading_frame() -> FrameType | None:
    """Return the frame that has called this module, through torch or not."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no public spelling that is as fast
    while frame is not None and frame.f_code.co_filename in _PASSING:
        frame = frame.f_back
    return frame
