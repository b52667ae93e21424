"""Collects the state that reading a data set may change: counters, caches, its own generators.

A share of a batch can be loaded separately only if loading a sample does not affect the next one. The
generators of the process are compared elsewhere (`watch.drawn`). This module collects the other state: the
attributes of the data set, and the globals that its functions refer to::

    class Digits(Dataset):
        def __init__(self):
            self.noise = np.random.default_rng(0)    found: a generator
            self.seen = 0                            found: a number
        def __getitem__(self, index):
            return self.noise.normal() + SCALE       found: a global
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from samestep.autopilot.script.call_account import is_internal_code

_MOST = 2000
"""The largest number of objects that are inspected."""
_OF_EACH = 64
"""The largest number of elements that are inspected in a container, beside its length."""

State: TypeAlias = list[Any]
_READERS: Mapping[Any, Callable[[Any], Any]] = {
    random.Random: lambda one: one.getstate(),
    np.random.Generator: lambda one: repr(one.bit_generator.state),
    np.random.RandomState: lambda one: repr(one.get_state(legacy=False)),
    torch.Generator: lambda one: one.get_state().numpy().tobytes(),
    Tensor: lambda one: (id(one), one._version),  # noqa: SLF001 - the number of writes to it
    list | tuple | dict | set | frozenset: lambda one: (type(one), len(one)),
}


def state_of(*roots: Any) -> State:
    """Return the state of all objects that are reachable from `roots`, for a comparison."""
    state: State = []
    waiting, seen = list(roots), dict[int, Any]()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if one is None or isinstance(one, bool | int | float | complex | str | bytes):
            state.append(one)
        elif id(one) not in seen:
            seen[id(one)] = one
            state.append(_own(one))
            waiting += _parts(one)
    return state


def _own(one: Any) -> Any:
    """Return the state of one object, without its parts."""
    return next((read(one) for kind, read in _READERS.items() if isinstance(one, kind)), id(one))


def _parts(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from islice(one.values(), _OF_EACH)
    elif isinstance(one, list | tuple | set | frozenset):
        yield from islice(one, _OF_EACH)
    elif isinstance(one, MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, partial):
        yield from (one.func, one.args, one.keywords)
    elif isinstance(one, FunctionType):
        yield from _named(one)
    elif not isinstance(one, ModuleType | type | Tensor):
        yield from getattr(one, "__dict__", {}).values()
        for owner in type(one).__mro__:
            yield from (part for part in vars(owner).values() if isinstance(part, FunctionType))


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the values of a user-defined function's closure, and the globals that it refers to."""
    if is_internal_code(function.__code__.co_filename):
        return
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
