"""Walks along what a module's forward can read and change beside its parameters and arguments.

That is what its classes keep in attributes, also within dicts and plain objects, and the globals that its
functions name::

    class Net(nn.Module):
        def __init__(self, config):
            self.epoch = 0                     attribute
            self.config = config               its fields
            self.stats = {"seen": 0}           its values
        def forward(self, x):
            if WARM_UP: ...                    global
            return helper(x)                   and the globals that it names
"""

import dis
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, lru_cache
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from samestep.autopilot.account import is_users
from samestep.base import env

Key: TypeAlias = tuple[int, str]
"""The place of a module among those in the one called, -1 for a global; and the name in it."""
PLAIN = (bool, int, float, str, type(None))
LISTS = (list, deque)
_DEPTH, _MOST_KEYS = 3, 64
_COMPILED = "_torchdynamo_orig_callable"
"""The attribute by which a compiled function is known."""
_TORCHS = frozenset(vars(nn.Module()))


def modules_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and those in it, as often as they are there: `modules` takes several times as long."""
    yield module
    waiting = [module]
    while waiting:
        for one in waiting.pop()._modules.values():  # noqa: SLF001
            if one is not None:
                yield one
                waiting.append(one)


def reached(module: nn.Module) -> Iterator[tuple[Key, Any]]:
    """Yield all that the forward of a module reaches, each with its place; containers before their parts."""
    seen: set[int] = set()
    kinds: set[Any] = set()
    for place, one in enumerate(modules_of(module)):
        kind = type(one)
        if kind.__module__.startswith("torch."):
            continue
        kinds.add(kind)
        for key, value in vars(one).items():
            if key not in _TORCHS:
                yield from _walk((place, key), value, _DEPTH, seen)
    for kind in kinds:
        for name, value in _shared_by(kind):
            yield from _walk((-1, name), value, _DEPTH, seen)


def _shared_by(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the globals that functions of a class name, what the class itself holds, and the environment."""
    if _reads_environment(kind):
        yield "environment", str(sorted(env.snapshot().items()))
    for names, name in _globals_of(kind):
        if name in names:
            yield name, names[name]
    for owner in scripts_classes(kind):
        for name, value in vars(owner).items():
            if not name.startswith("__"):
                yield f"{owner.__name__}.{name}", value


def is_compiled(module: nn.Module) -> bool:
    """Return whether a call of a module runs code of `torch.compile`."""
    if "torch._dynamo" not in sys.modules:
        return False
    for one in modules_of(module):
        if "_orig_mod" in one._modules or one._compiled_call_impl is not None:  # noqa: SLF001
            return True
        if hasattr(one.forward, _COMPILED):
            return True
    return any(hasattr(names.get(name), _COMPILED) for names, name in globals_of(module))


def scripts_classes(kind: Any) -> list[type]:
    """Return a class and those it inherits from, as far as the script defines them."""
    return [owner for owner in kind.__mro__ if _is_of_users(owner)]


def cells_of(function: FunctionType) -> list[CellType]:
    """Return the variables of enclosing functions that a function names, as far as they are set."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            cell.cell_contents  # noqa: B018 - it raises where there is nothing
            found.append(cell)
    return found


def named_by(function: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the globals that a function of the script's names, but for functions, classes and modules."""
    if not isinstance(function, FunctionType) or not is_users(function.__code__.co_filename):
        return []
    names = function.__globals__
    return [
        (names, name)
        for name in _named(function.__code__, set())
        if not isinstance(names.get(name), (FunctionType, ModuleType, type))
    ]


def globals_of(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the globals that the functions of a module's classes name, as their dict and their name."""
    kinds: set[Any] = {type(one) for one in modules_of(module)}
    for kind in kinds:
        if not kind.__module__.startswith("torch."):
            yield from _globals_of(kind)


def _walk(key: Key, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[Key, Any]]:
    yield key, value
    if isinstance(value, PLAIN) or not depth:
        return
    parts: Any
    if isinstance(value, FunctionType):
        if not is_users(value.__code__.co_filename):
            return
        free = value.__code__.co_freevars
        cells = [(free[place], cell.cell_contents) for place, cell in enumerate(cells_of(value))]
        shared = [(name, names[name]) for names, name in named_by(value) if name in names]
        parts = [*cells, *shared, *enumerate(value.__defaults__ or ())]
    elif isinstance(value, dict):
        parts = value.items() if len(value) <= _MOST_KEYS else ()
    elif isinstance(value, tuple):
        parts = enumerate(value) if len(value) <= _MOST_KEYS else ()
    elif is_record(value):
        parts = vars(value).items()
    else:
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for name, part in list(parts):
        yield from _walk((key[0], f"{key[1]}.{name}"), part, depth - 1, seen)


def is_record(value: Any) -> bool:
    """Return whether a value is an object of the script's whose fields are looked at."""
    if isinstance(value, (nn.Module, Tensor, np.ndarray, ModuleType, type)) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, (Namespace, SimpleNamespace)) or is_dataclass(value):
        return True
    kind: Any = type(value)
    return bool(_is_of_users(kind))


@lru_cache(maxsize=256)
def _reads_environment(kind: Any) -> bool:
    functions = (one for owner in scripts_classes(kind) for one in vars(owner).values())
    return any(
        isinstance(one, FunctionType) and {"environ", "getenv"} & set(one.__code__.co_names)
        for one in functions
    )


@cache
def _is_of_users(kind: Any) -> bool:
    """Return whether the script defines a class."""
    functions = [one for one in vars(kind).values() if isinstance(one, FunctionType)]
    return any(is_users(one.__code__.co_filename) for one in functions)


@lru_cache(maxsize=256)
def _globals_of(kind: Any) -> tuple[tuple[dict[str, Any], str], ...]:
    """Return the globals that the script's functions of a class name, and those that these call name."""
    functions = [
        one
        for owner in kind.__mro__
        for one in vars(owner).values()
        if isinstance(one, FunctionType) and is_users(one.__code__.co_filename)
    ]
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    seen: set[CodeType] = set()
    while functions:
        function = functions.pop()
        names = function.__globals__
        for name in _named(function.__code__, seen):
            value = names.get(name)
            if isinstance(value, FunctionType):
                if value.__code__ not in seen and is_users(value.__code__.co_filename):
                    functions.append(value)
            elif not isinstance(value, (ModuleType, type)):
                found[id(names), name] = names, name
    return tuple(found.values())


def _named(code: CodeType, seen: set[CodeType]) -> Iterator[str]:
    if code in seen:
        return
    seen.add(code)
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _named(part, seen)
