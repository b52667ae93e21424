"""Computes the signatures of calls: calls of one signature are split in the same way.

A module may branch on a number that changes in each call, such as a schedule or a count of its calls::

    if self.temperature < 0.3: ...
    if self.calls == self.warm_up: ...

Not each of its values can be checked. The constants in the code, and the numbers among the guards, divide
them into intervals: a value in another interval than the checked ones may take another branch.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from samestep.autopilot.split.call_arguments import (
    CallArguments,
    Dims,
    depth_of_list,
    unequal_sizes,
    unequal_values,
)
from samestep.autopilot.split.guards import (
    Attributes,
    changed,
    plain_arguments,
    plain_attributes,
    without,
)
from samestep.autopilot.state.reachable_state import constants_of, key_of_replaced
from samestep.hooks.object_graph import Key
from samestep.hooks.tensor_tree import Path

Interval: TypeAlias = Any
"""The interval of a number, or what stands for it where a value is no number."""


class GuardIntervals:
    """The intervals between the constants of one module."""

    def __init__(self, constants: Iterable[Any]) -> None:
        values = set(constants)
        self._numbers = sorted(
            {float(number) for number in values if _is_number(number) and abs(number) < _LARGEST}
        )
        self._texts = {constant for constant in values if isinstance(constant, _TEXTS)}

    def of(self, value: Any) -> Interval:
        """Return the interval of a guard: equal for values that are compared alike with all constants."""
        if _is_number(value):
            return bisect_left(self._numbers, value), bisect_right(self._numbers, value)
        if isinstance(value, _TEXTS):
            return value if value in self._texts else type(value)
        if isinstance(value, tuple):
            return tuple(self.of(part) for part in value)
        return value


_TEXTS = (str, bytes, PurePath)
"""Classes of guards that are compared with constants only: a file name may be new in each call."""
_LARGEST = 1e30  # larger constants are masks' infinities, which no value is compared with: a guess


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def numbers_in(value: Any) -> list[Any]:
    """Return the numbers and texts in a structure of tuples."""
    if isinstance(value, tuple):
        return [number for part in value for number in numbers_in(part)]
    return [value] if _is_number(value) or isinstance(value, _TEXTS) else []


Signature: TypeAlias = tuple[Any, ...]
"""Modes and shapes of a call, and the values of its guards."""
Sizes: TypeAlias = tuple[torch.Size, ...]
"""The shapes of the tensors among the arguments of a call."""

MOST_STATES = 8
"""Values of the guards of one signature that are all checked; then one whenever their number doubles.

Of fractions and growing lists, these are checked from the start on: they have no few values, as modes have.
It is a guess, as the numbers below: modes and flags have few values, and counters have ever new ones.
"""
MOST_INTERVALS = 32
"""Combinations of intervals of one signature that are all checked: a list of lengths has ever new ones."""
MOST_FAILED_SIZES = 3
"""Sizes of calls of one signature that are checked before the signature stays unsplit permanently; those of
single samples, with which a policy acts, are counted alone."""
MOST_SPLIT_SIZES = 4
"""Sizes of split calls of one signature that are all checked; then one whenever their number doubles."""


@dataclass(eq=False, slots=True)
class _States:
    """The values of the guards of one module's calls."""

    known: defaultdict[Signature, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """The values that are part of a signature, by the rest of it."""
    new: Counter[Signature] = field(default_factory=Counter)
    """The number of new values, by the rest of their signature."""
    changing: set[Key] = field(default_factory=set)
    """The attributes that the calls themselves change."""
    plain: Attributes = field(default_factory=dict)
    """The attributes of the last call with a new value."""
    growing: set[Key] = field(default_factory=set)
    """The lists of numbers that the script appends to, such as losses that the module keeps for a plot."""
    intervals: GuardIntervals | None = None
    """The intervals between the constants of the module's code and the first values of its guards."""
    checked: defaultdict[Signature, set[Any]] = field(default_factory=lambda: defaultdict(set))
    """The intervals of the checked values, by the rest of the signature."""
    unequal: set[Path] = field(default_factory=set)
    """The places in lists where a call so far has had values that are not all equal."""
    is_unchecked: bool = False
    """Whether the last call's numbers are others than those of all checks."""
    counted: set[Any] = field(default_factory=set)
    """The intervals of the attributes that calls change, in which a call was compared."""
    sizes: defaultdict[Signature, set[Any]] = field(default_factory=lambda: defaultdict(set))
    """The intervals of the sizes of calls, by the form of these."""

    def follow(self, plain: Attributes) -> bool:
        """Follow the attributes, and return whether only fractions and growing lists have changed."""
        before, self.plain = self.plain, plain
        changes = {key: value for key, value in plain.items() if key not in before or before[key] != value}
        self.growing |= {key for key, value in changes.items() if _is_longer(value, before.get(key))}
        return before.keys() <= plain.keys() and all(
            type(value) is float or key in self.growing or self._is_in_growing(key)
            for key, value in changes.items()
        )

    def summarized(self, plain: Attributes) -> Attributes:
        """Return the attributes, but of a growing list only its length and the intervals of its numbers."""
        assert self.intervals is not None
        summary: dict[Key, Any] = {}
        for key, value in plain.items():
            if key in self.growing and type(value) is tuple:
                summary[key] = len(value), frozenset(map(self.intervals.of, value))
            elif not self._is_in_growing(key):
                summary[key] = value
        return summary

    def _is_in_growing(self, key: Key) -> bool:
        place, name = key
        return (place, name.rpartition(".")[0]) in self.growing


def _is_longer(values: Any, before: Any) -> bool:
    """Return whether values are those before and more."""
    are_lists = type(values) is type(before) is tuple
    return are_lists and len(values) > len(before) and values[: len(before)] == before


class CallSignatures:
    """Computes the signatures of one script's calls."""

    def __init__(self) -> None:
        self._modules: WeakKeyDictionary[nn.Module, _States] = WeakKeyDictionary()

    def signature(
        self,
        module: nn.Module,
        arguments: CallArguments,
        plain: Attributes,
        failed: Container[Signature],
        modes: Hashable = None,
    ) -> Signature:
        """Return the signature of a call, with the values of its guards.

        Beyond `MOST_STATES` values, or if none of them could be split, a new value is treated as an earlier
        one that could not be split, or else as the last one. It is checked if it lies in another interval
        between the module's constants than all checked ones, up to `MOST_INTERVALS`, or `MOST_STATES` if none
        could be split; and whenever the number of new values has doubled.

        Args:
            module: the module.
            arguments: the arguments.
            plain: the attributes that are guards, with their values.
            failed: the signatures whose calls stay unsplit.
            modes: the modes of torch that surround the call.
        """
        states = self._modules.setdefault(module, _States())
        states.unequal |= unequal_values(arguments.both)
        form = (module.training, modes, key_of_replaced(), arguments.form(), frozenset(states.unequal))
        state = (plain_arguments(arguments), without(plain, states.changing))
        known = states.known[form]
        states.is_unchecked = False
        if state in known:
            return form, state
        states.new[form] += 1
        if states.intervals is None:
            numbers = [value for *_, value in (*state[0], *plain.items())]
            states.intervals = GuardIntervals({*constants_of(module), *numbers_in(tuple(numbers))})
        is_gradual = states.follow(plain) and any(state[0] == arguments for arguments, _ in known[-1:])
        place = states.intervals.of((state[0], without(states.summarized(plain), states.changing)))
        number = states.new[form]
        has_failed = bool(known) and all((form, guards) in failed for guards in known)
        is_early = number.bit_count() == 1 or (number <= MOST_STATES and not has_failed and not is_gradual)
        most = MOST_STATES if has_failed else MOST_INTERVALS
        if is_early or (place not in states.checked[form] and len(states.checked[form]) < most):
            states.checked[form].add(place)
            known.append(state)
        else:
            states.is_unchecked = True
            state = next((guards for guards in known if (form, guards) in failed), known[-1])
        return form, state

    def without_own_changes(
        self, module: nn.Module, plain: Attributes, signature: Signature
    ) -> tuple[Signature, bool]:
        """Return the signature without the attributes that the call itself has changed, such as a counter.

        The new signature replaces the old one, so it is not counted as a new state.

        Returns:
            the signature, and whether an attribute was not known to change. It may be one that the call has
            made, which the signature does not have either way.
        """
        states = self._modules[module]
        changes = changed(plain, plain_attributes(module)).keys()
        if changes <= states.changing:
            return signature, False
        states.changing.update(changes)
        form, (arguments, _) = signature
        state = arguments, without(plain, states.changing)
        known = states.known[form]
        known.remove(signature[1])
        if state not in known:
            known.append(state)
        return (form, state), True

    def are_changed_by_calls(self, module: nn.Module) -> bool:
        """Return whether calls change attributes of a module."""
        return bool(self._modules[module].changing)

    def may_branch_anew(self, module: nn.Module) -> bool:
        """Return whether a number of the last call has a value that no check has had."""
        states = self._modules[module]
        return states.is_unchecked or bool(states.changing)

    def counts_to_new_interval(self, module: nn.Module, plain: Attributes) -> bool:
        """Return whether an attribute that calls change comes to a constant, or into another interval."""
        states = self._modules[module]
        if states.intervals is None:
            return False
        values = [(key, plain[key]) for key in states.changing if type(plain.get(key)) in (int, float)]
        # Forward may count before or after it compares.
        places = {(key, states.intervals.of(value + step)) for key, value in values for step in (0, 1)}
        is_new = not places <= states.counted
        states.counted |= places
        return is_new

    def have_sizes_of_new_interval(
        self, module: nn.Module, arguments: CallArguments, signature: Signature
    ) -> bool:
        """Return whether sizes of a call lie in other intervals between the module's constants than before.

        A forward may branch on the number of all samples, which no slice has.
        """
        states = self._modules[module]
        known = states.sizes[signature[0]]
        place = None if states.intervals is None else states.intervals.of(sizes_of(arguments))
        is_new = place not in known and len(known) < MOST_INTERVALS
        if is_new:
            known.add(place)
        return is_new


class CheckedSizes:
    """Records which sizes of the calls of one signature are checked, and which have failed.

    A model may branch on a size, dimensions of equal size may be confused, and a slice of one sample has
    dimensions that others do not have. It may pad the parts of a list to the largest one, so the first call
    whose slices then differ is checked. So each size is checked, and a failed one stays unsplit.
    """

    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}
        """For each size of a call, whether it has been checked and has not failed."""
        self._failed: dict[Any, str] = {}
        """The reason of each size that has failed."""
        self._has_single = False  # whether a size with a slice of one sample has been checked
        self._largest = 0  # the largest number of samples of a call that has been checked
        self._single: set[frozenset[Any]] = set()
        """The dimensions of size 1 in the calls so far: the order of rows and samples does not show there."""
        self._unequal: set[Any] = set()
        """The sizes that differed between slices of lists in the calls so far; see `unequal_sizes`."""

    def are_checked(
        self,
        arguments: CallArguments,
        total: int | None,
        ranks: int,
        dims: Dims = MappingProxyType({}),
        *,
        have_one_way: bool = True,
    ) -> bool:
        """Return whether a call is checked: one of a new size.

        Each is if the sizes so far do not have one way to be split, as an output whose rows vary faster than
        the samples: with a single row the order does not show.
        """
        sizes = sizes_of(arguments)
        if sizes in self._known:
            return False
        if total is None:
            has_few = are_few(sizes, ranks)
            if sum(are_few(known, ranks) == has_few for known in self._known) >= MOST_FAILED_SIZES:
                return False
        elif total < ranks:
            return False
        is_first_single = total is not None and total < 2 * ranks and not self._has_single
        self._has_single |= is_first_single
        unequal = unequal_sizes(arguments.both, dims, ranks)
        is_first_unequal = not unequal <= self._unequal
        self._unequal |= unequal
        single = _single_dims(arguments, dims)
        is_much_larger = (total or 0) >= 2 * self._largest  # it may exceed a limit, as of a clamp
        is_first = is_first_single or is_first_unequal or single not in self._single or is_much_larger
        self._single.add(single)
        count = len(self._known) + 1
        checked = (
            total is None
            or is_first
            or not have_one_way
            or count <= MOST_SPLIT_SIZES
            or count.bit_count() == 1
        )
        self._known[sizes] = checked
        self._largest = max(self._largest, total or 0) if checked else self._largest
        return checked

    def fail(self, sizes: Sizes, why: str) -> None:
        """Record that calls of these sizes have failed their check, and why."""
        self._known[sizes], self._failed[sizes] = False, why

    def may_be_split(self, arguments: CallArguments) -> bool:
        """Return whether a call may be split; once a size has failed, only if its own size has passed."""
        return not self._failed or self._known.get(sizes_of(arguments), False)

    def why(self, arguments: CallArguments, of_signature: str) -> str:
        """Return why a call stays unsplit: the reason of its size, of its signature, or of a later size."""
        why = self._failed.get(sizes_of(arguments), "")
        return why or of_signature or next(reversed(self._failed.values()), "")


def _single_dims(arguments: CallArguments, dims: Dims) -> frozenset[tuple[Path, int]]:
    """Return the dimensions of size 1, without those of lists of samples, where each has its own."""
    return frozenset(
        (path, dim)
        for path, tensor in arguments.tensors()
        if depth_of_list(path, dims) is None
        for dim, size in enumerate(tensor.shape)
        if size == 1
    )


def sizes_of(arguments: CallArguments) -> Sizes:
    """Return the shapes of the tensors among the arguments."""
    return tuple(tensor.shape for _, tensor in arguments.tensors())


def are_few(sizes: Sizes, ranks: int) -> bool:
    """Return whether a call of these sizes has fewer samples than ranks, as far as its first tensor shows."""
    return bool(sizes) and sizes[0][0] < ranks
