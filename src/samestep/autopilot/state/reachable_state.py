"""Finds the state that a module's forward can read and change beside its parameters and arguments.

This state is in the attributes of modules, also within dicts and plain objects, and in the globals that
functions of user-defined modules refer to::

    class Net(nn.Module):
        def __init__(self, config):
            self.epoch = 0                     attribute
            self.config = config               its fields
            self.stats = {"seen": 0}           its values
        def forward(self, x):
            if WARM_UP: ...                    global
            return helper(x)                   and the globals that helper refers to
"""

import dis
import logging
import os
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, cached_property, lru_cache, partial, partialmethod, singledispatchmethod
from itertools import chain, pairwise
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from samestep.autopilot.script.call_account import is_user_code, is_users_code
from samestep.base import env
from samestep.hooks import module_parts
from samestep.hooks.object_graph import WEAK, Key, Parts, cells_of, stored_in, walk
from samestep.hooks.raw_containers import base_of

PLAIN = (bool, int, float, str, type(None))
LISTS = (list, deque)
MOST_KEYS = 64
"""Parts of each value that are read: a guess, since each call reads them."""
DEEPEST = 100
"""The depth to which what calls read or change is followed; values that are nested deeper are not split."""
COMPILED = "_torchdynamo_orig_callable"
"""The attribute that marks a compiled function, and has what it was made from."""
_RECORDS = (Namespace, SimpleNamespace)  # of Python's own classes
CALLABLE = (FunctionType, MethodType, staticmethod, classmethod, property, partial)
CACHED: Any = type(lru_cache(len))
"""The class of a function that `functools.lru_cache` or `functools.cache` has decorated."""
_WITH_CODE = (*CALLABLE, CACHED)
_OF_BUFFER = ("persistent", "_is_buffer")
"""The attributes that torch gives to a tensor that is declared as a buffer."""
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""The attributes that `nn.Module` itself defines."""


def modules_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its submodules, shared ones repeatedly; several times faster than `modules`."""
    yield module
    waiting = [module]
    while waiting:
        for part in waiting.pop()._modules.values():  # noqa: SLF001
            if part is not None:
                yield part
                if part._modules:  # noqa: SLF001
                    waiting.append(part)


def reached(module: nn.Module, depth: int = DEEPEST) -> Iterator[tuple[Key, Any]]:
    """Yield all values that the forward of a module can reach, with their keys; containers come first.

    The number in a key is the index of a module among the submodules, or -1 for a global. Values in
    containers and objects are followed to a `depth`.
    """
    parts = [*modules_of(module)]
    yield from walk(_roots(parts), _parts, depth=depth, known=map(id, parts))


def _roots(parts: Iterable[nn.Module]) -> Iterator[tuple[Key, Any]]:
    """Yield the attributes of modules, and what their classes refer to."""
    kinds: dict[Any, None] = {}  # in the order of the modules, which all processes have
    torchs_kinds: set[Any] = set()
    for place, part in enumerate(parts):
        kind: Any = type(part)
        if kind in torchs_kinds or kind.__module__.startswith("torch."):
            if kind not in torchs_kinds and _has_code_of_script(kind):
                kinds[kind] = None
            torchs_kinds.add(kind)
            if not _torchs_names(kind).issuperset(vars(part)):
                attributes = sorted(vars(part).keys() - _torchs_names(kind))
                of_script = (key for key in attributes if not _is_torchs(key, vars(part)[key]))
                yield from (((place, key), vars(part)[key]) for key in of_script)
            continue
        kinds[kind] = None
        for key, value in [*vars(part).items()]:  # at once: another thread may set an attribute
            if key not in MODULE_ATTRIBUTES:
                yield (place, key), value
    known: set[tuple[int, str]] = set()
    for kind in kinds:
        for owner, name, value in _shared_by(kind):
            if (owner, name) not in known:
                known.add((owner, name))
                yield (-1, name), value
    yield from _replacements()


def _replacements() -> Iterator[tuple[Key, Any]]:
    """Yield the script's functions in place of torch's, which have closures, and read globals."""
    for owner in _OWNERS:
        yield from owner.of_script()


def is_setting(value: Any) -> bool:
    """Return whether an attribute of a layer of torch is a flag, a number, a text, or a tuple of them."""
    return isinstance(value, PLAIN) or (
        type(value) is tuple and all(isinstance(part, PLAIN) for part in value)
    )


@cache
def _torchs_names(kind: Any) -> frozenset[str]:
    """Return the attributes that `nn.Module` defines, and the settings of one of torch's layers."""
    return MODULE_ATTRIBUTES.union(getattr(kind, "__constants__", ()))


def _is_torchs(name: str, value: Any) -> bool:
    """Return whether an attribute of one of torch's layers is a setting, or a private one but no method.

    A script may set others, such as a mask that another module reads, or an activation.
    """
    return is_setting(value) or (name[:1] == "_" and not isinstance(value, CALLABLE))


def _shared_by(kind: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield what the functions of a class read, and its own attributes, each after the id of its owner."""
    yield from _read_by(kind)
    for owner in scripts_classes(kind):
        for name, value in [*vars(owner).items()]:
            if not name.startswith("__"):
                yield id(owner), f"{owner.__name__}.{name}", value


def _read_by(kind: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield what the functions of a class read besides its fields: the environment, globals, closures.

    Each is after the id of what has it, such as the globals of one of several files.
    """
    yield from ((0, name, value) for name, value in _settings_of_process(_settings_read_by(kind)))
    for names, name in globals_of_class(kind):
        if name in names:
            yield id(names), name, names[name]
    for function in _code_of(kind):
        if _keeps_values(function) or function.__name__ in _names_given_attributes(kind):
            yield id(function), f"{function.__qualname__}()", function


def _parts_read_by(kind: Any) -> Parts:
    return [(name, value) for _, name, value in _read_by(kind)]


def _keeps_values(function: FunctionType) -> bool:
    """Return whether a function has variables of an enclosing function, attributes, or changing defaults."""
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    variables = set(function.__code__.co_freevars) - {"__class__"}
    return bool(variables or function.__dict__) or not all(isinstance(value, PLAIN) for value in defaults)


def is_compiled(module: nn.Module) -> bool:
    """Return whether a call of a module runs code that `torch.compile` has compiled."""
    if "torch._dynamo" not in sys.modules:
        return False
    for part in modules_of(module):
        if "_orig_mod" in part._modules or part._compiled_call_impl is not None:  # noqa: SLF001
            return True
        if any(map(runs_compiled, (part.forward, *vars(part).values()))):
            return True
    methods = (
        value for kind in _classes_in(module) for owner in kind.__mro__ for value in vars(owner).values()
    )
    return any(map(runs_compiled, chain((function for _, function in called_by(module)), methods)))


def runs_compiled(function: Any) -> bool:
    """Return whether a function is compiled; `torch.compiler.disable` sets the same mark and one more."""
    function = function.__func__ if isinstance(function, MethodType) else function
    marks = function.__dict__ if isinstance(function, FunctionType) else {}
    return COMPILED in marks and "_torchdynamo_disable" not in marks


def scripts_classes(kind: Any) -> list[type]:
    """Return a class and its base classes, without those that are not user-defined."""
    return [owner for owner in kind.__mro__ if _is_of_users(owner)]


def named_by(function: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the globals that a user-defined function, and those that it calls, refer to."""
    return [pair for part in _with_called(functions_in(function)) for pair in _named_in(part)]


def _named_in(function: FunctionType) -> list[tuple[dict[str, Any], str]]:
    return [
        (names, name) for names, name in _named(function) if not isinstance(names.get(name), FunctionType)
    ]


def _named(function: FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the globals that a function refers to, and those of other files, such as ``config.rate``."""
    waiting = [(function.__globals__, name) for name in _names_in(function.__code__)]
    seen: set[tuple[int, str]] = set()
    while waiting:
        names, name = waiting.pop()
        if (id(names), name) in seen:
            continue
        seen.add((id(names), name))
        yield names, name
        value = names.get(name)
        if isinstance(value, ModuleType) and _is_of_script(value):
            known = vars(value)
            waiting += [(known, part) for part in _attributes_in(function.__code__) if part in known]


def functions_in(value: Any) -> Iterator[FunctionType]:
    """Yield the user-defined functions in a value: itself, or what a method, property or partial wraps."""
    waiting, seen = [value], 0
    while waiting and seen < MOST_KEYS:
        candidate = waiting.pop()
        seen += 1
        if isinstance(candidate, FunctionType):
            if is_users_code(candidate.__code__, candidate.__globals__):
                yield candidate
            else:  # that of a library's decorator, which keeps the user's function
                waiting += [kept for _, _, value in cells_of(candidate) for kept in _functions_kept_in(value)]
            waiting += [candidate.__dict__["__wrapped__"]] if "__wrapped__" in candidate.__dict__ else []
        elif isinstance(candidate, (staticmethod, classmethod, MethodType)):
            waiting.append(candidate.__func__)
        elif isinstance(candidate, property):
            waiting += [part for part in (candidate.fget, candidate.fset) if part is not None]
        elif isinstance(candidate, (partial, partialmethod, cached_property)):
            waiting.append(candidate.func)
        elif isinstance(candidate, singledispatchmethod):
            waiting.append(candidate.dispatcher)
        elif isinstance(candidate, CACHED):
            waiting.append(candidate.__wrapped__)


def _functions_kept_in(variable: Any) -> list[Any]:
    """Return the functions in a variable of a decorator: itself, or those of a table by type."""
    kept = [*dict.values(variable)] if type(variable) is dict else [variable]
    return [value for value in kept if isinstance(value, _WITH_CODE)]


def _classes_in(module: nn.Module) -> list[Any]:
    """Return the classes of a module and its submodules, without those of torch as it defines them."""
    kinds: set[Any] = {type(part) for part in modules_of(module)}
    return [kind for kind in kinds if not kind.__module__.startswith("torch.") or _has_code_of_script(kind)]


_numbers_of_code: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number of the methods of each class, when they were last read."""


def _has_code_of_script(kind: Any) -> bool:
    """Return whether the script has replaced a method of one of torch's layers, for all of its kind."""
    methods = module_parts.methods_of(kind)
    if _numbers_of_code.setdefault(kind, methods.number) != methods.number:
        _numbers_of_code[kind] = methods.number
        forget_classes()
    return not methods.are_torchs and any(True for member in methods.members for _ in functions_in(member))


def globals_of(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the globals that the functions of a module's classes refer to, each as its dict and its name."""
    for kind in _classes_in(module):
        yield from globals_of_class(kind)


def walked(name: str, value: Any) -> Iterator[tuple[Key, Any]]:
    """Yield a value and its parts, however deep, each with a key that begins with this name."""
    yield from walk([((0, name), value)], _parts, depth=DEEPEST)


def marks_of(tensor: Tensor) -> dict[str, Any]:
    """Return the attributes that a script has set on a tensor, without those of torch."""
    # Most tensors have none, and each call asks for those of all weights.
    marks = vars(tensor)
    of_torch = _OF_BUFFER if "_is_buffer" in marks else ()
    return marks and {
        name: value
        for name, value in [*marks.items()]
        if not name.startswith("_dynamo") and name not in of_torch
    }


def _parts(value: Any) -> Parts:
    """Return the parts of a value that a forward may read, or that it may run."""
    if base_of(value) is not None or type(value) in WEAK:
        return stored_in(value, most=MOST_KEYS)
    if isinstance(value, _WITH_CODE):
        parts = stored_in(value) if isinstance(value, (MethodType, partial)) else []
        for function in _with_called(functions_in(value)):
            parts += stored_in(function)
            parts += [(name, names[name]) for names, name in _named_in(function) if name in names]
            parts += _settings_of_process(_settings_named_in(function.__code__))
        return parts
    if isinstance(value, ModuleType):
        return [*shared_fields(value).items()]
    if isinstance(value, nn.Module):  # one that is not registered, such as a teacher in a list
        attributes = [(name, part) for name, part in [*vars(value).items()] if name not in MODULE_ATTRIBUTES]
        registered = (value._parameters, value._buffers, value._modules)  # noqa: SLF001
        attributes += [pair for parts in registered for pair in [*parts.items()]]
        return [("training", value.training), *attributes, *_parts_read_by(type(value))]
    return _parts_of_class(value) if isinstance(value, type) else _parts_of_object(value)


def _parts_of_object(value: Any) -> Parts:
    """Return the fields of a plain object, its class, and what that has and reads."""
    if type(value) is Tensor or type(value) is nn.Parameter:  # most arguments of calls: none of it
        return []
    parts = stored_in(value) if is_record(value) or isinstance(value, MappingProxyType) else []
    # A field can have the name of an attribute of its class, such as its default.
    of_class = [(f"class.{name}", part) for name, part in _parts_of_class(type(value))]
    return [*parts, ("class", type(value)), *of_class] if scripts_classes(type(value)) else parts + of_class


def _parts_of_class(kind: Any) -> Parts:
    """Return the attributes of a user-defined class, and what its methods read besides them."""
    parts: Parts = [
        (name if owner is kind else f"{owner.__name__}.{name}", field)
        for owner in kind.__mro__[:-1]  # without `object`
        for name, field in shared_fields(owner).items()
    ]
    if scripts_classes(kind):
        parts += _parts_read_by(kind)
        classes = [("metaclass", type(kind)), *vars(kind).items()]  # and those defined inside of it
        parts += [(name, field) for name, field in classes if isinstance(field, type) and field is not type]
    if issubclass(kind, Function):  # its backward is called, too
        parts += [(name, field) for name, field in [*vars(kind).items()] if isinstance(field, CALLABLE)]
    return parts


def shared_fields(value: Any) -> dict[str, Any]:
    """Return the attributes of a user-defined class or module, except functions and classes."""
    is_model = isinstance(value, type) and issubclass(value, (nn.Module, Enum))
    if is_model or not _is_of_script(value):
        return {}
    excluded = (*CALLABLE, type, ModuleType)
    return {
        name: field
        for name, field in list(vars(value).items())
        if not name.startswith("__") and not isinstance(field, excluded)
    }


def _is_of_script(value: Any) -> bool:
    """Return whether a class or a module is user-defined, by the file of the module."""
    owner = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
    file = known_files.get(value.__module__) if known_files and owner is not value else None
    file = file or getattr(owner, "__file__", None)
    if file is None or file == "<stdin>":  # typed at the prompt, or piped to Python
        return getattr(owner, "__name__", "") == "__main__"
    return isinstance(file, str) and is_user_code(file)


_COMPUTED_NAMES = {"getattr", "methodcaller", "__getattribute__"}
"""The names in code that may run a method whose own name is not in it."""


def is_record(value: Any) -> bool:
    """Return whether a value is a plain object whose fields are inspected.

    Its class is user-defined, or a container that a library has written in Python, such as a configuration.
    """
    if isinstance(value, (nn.Module, Tensor, np.ndarray, ModuleType, type, Enum, *CALLABLE)):
        return False
    if isinstance(value, _RECORDS) or is_dataclass(value):
        return True
    kind: Any = type(value)
    return bool(_is_of_users(kind) or _is_written_container(kind))


@cache
def _is_written_container(kind: Any) -> bool:
    return kind not in WEAK and any(base in (MutableMapping, MutableSequence) for base in kind.__mro__)


def _levels() -> list[tuple[str, int]]:
    """Return the levels of loggers that the script or a library has set."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    levels = [(logger.name, logger.level) for logger in loggers if isinstance(logger, logging.Logger)]
    return [("", logging.root.manager.disable), *((name, level) for name, level in levels if level)]


_OF_PROCESS: Mapping[str, tuple[frozenset[str], Callable[[], object]]] = {
    "environment": (frozenset({"environ", "getenv"}), lambda: sorted(env.snapshot().items())),
    "sys.argv": (frozenset({"argv"}), lambda: sys.argv),
    "current folder": (frozenset({"cwd", "getcwd"}), os.getcwd),
    "levels of logging": (frozenset({"isEnabledFor", "getEffectiveLevel"}), _levels),
}
"""Settings of a process that a forward may read: the names by which it does, and their values."""


def _settings_of_process(names: Iterable[str]) -> Parts:
    return [(name, str(_OF_PROCESS[name][1]())) for name in names]


@lru_cache(maxsize=256)
def _settings_read_by(kind: Any) -> tuple[str, ...]:
    read = {name for function in _code_of(kind) for name in _settings_named_in(function.__code__)}
    return tuple(sorted(read))


@lru_cache(maxsize=4096)
def _settings_named_in(code: CodeType) -> tuple[str, ...]:
    return tuple(name for name, (names, _) in _OF_PROCESS.items() if names & set(code.co_names))


@cache
def _is_of_users(kind: Any) -> bool:
    """Return whether a class is user-defined, by its file or by a function that it has."""
    return _is_of_script(kind) or any(True for value in [*vars(kind).values()] for _ in functions_in(value))


def called_by(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the functions that the code of a module's classes names, as they are now, with their names.

    They are globals, and attributes of modules of Python, such as ``F.relu``.
    """
    kinds: set[Any] = {type(part) for part in modules_of(module)}
    for kind in kinds:
        if not kind.__module__.startswith("torch."):
            for names, name, attribute in _calls_of(kind):
                value = names.get(name)
                if attribute:
                    value = getattr(value, attribute, None) if isinstance(value, ModuleType) else None
                if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, type)):
                    yield f"{name}.{attribute}", value


@lru_cache(maxsize=256)
def _calls_of(kind: Any) -> tuple[tuple[dict[str, Any], str, str], ...]:
    """Return the globals that a class's functions name, and the attributes of modules among them."""
    calls: dict[tuple[int, str, str], tuple[dict[str, Any], str, str]] = {}
    for function in _code_of(kind):
        names = function.__globals__
        for name in _names_in(function.__code__):
            is_module = isinstance(names.get(name), ModuleType)
            attributes = (
                [attribute for attribute in function.__code__.co_names if attribute[:2] != "__"]
                if is_module
                else [""]
            )
            for attribute in attributes:
                calls[id(names), name, attribute] = names, name, attribute
    return tuple(calls.values())


known_files: dict[str, str] = {}
"""The files of the script's modules, by name, in a process that has their classes but not the modules."""


def forget_classes() -> None:
    """Find the functions of each class again: a class of a mirror is the same one with new functions."""
    for known in _settings_read_by, _is_of_users, globals_of_class, _code_of, _calls_of:
        known.cache_clear()


def constants_of(module: nn.Module) -> set[Any]:
    """Return the numbers and texts in the code that the forward of a module may run."""
    functions = chain(functions_of(module), _functions_beside((value for _, value in reached(module))))
    return {value for function in functions for value in _constants_in(function.__code__)}


def _functions_beside(values: Iterable[Any]) -> tuple[FunctionType, ...]:
    """Return the user-defined functions of objects, and those that are values, with those that they call."""
    pairs: Iterator[tuple[Any, Any]] = ((type(value), value) for value in values)
    codes = (_code_of(kind) if is_record(value) else functions_in(value) for kind, value in pairs)
    return _with_called(chain.from_iterable(codes))


def names_in_code(module: nn.Module) -> set[Any]:
    """Return the attributes and the constants that the code of a module's classes names."""
    return names_in(functions_of(module))


def names_in(functions: Iterable[FunctionType]) -> set[Any]:
    """Return the attributes and the constants that the code of functions names."""
    codes = [function.__code__ for function in functions]
    return {name for code in codes for name in (*_attributes_in(code), *_constants_in(code))}


def reads_gradients(functions: Iterable[FunctionType]) -> bool:
    """Return whether the code of functions reads an attribute `grad`, but of torch's modules."""
    return any(_reads_gradient(function.__code__) for function in functions)


@lru_cache(maxsize=4096)
def _reads_gradient(code: CodeType) -> bool:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    if any(map(_reads_gradient, inner)):
        return True
    # A gradient is not called. Python before 3.12 loads most of what is called by another instruction.
    return "grad" in code.co_names and any(
        step.argval == "grad"
        and (step.opname == "LOAD_ATTR" and "NULL|self" not in step.argrepr)
        and owner.argval not in ("autograd", "func")
        for owner, step in pairwise(dis.get_instructions(code))
    )


@lru_cache(maxsize=4096)
def _constants_in(code: CodeType) -> frozenset[Any]:
    constants: set[Any] = set()
    waiting: list[Any] = [code]
    while waiting:
        constant = waiting.pop()
        if isinstance(constant, CodeType):
            waiting += constant.co_consts
        elif isinstance(constant, (tuple, frozenset)):
            waiting += constant
        elif isinstance(constant, (int, float, str, bytes)):
            constants.add(constant)
    return frozenset(constants)


@lru_cache(maxsize=256)
def globals_of_class(kind: Any) -> tuple[tuple[dict[str, Any], str], ...]:
    """Return the globals that the user-defined functions of a class, and those they call, refer to."""
    variables: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    for function in _code_of(kind):
        for names, name in _named_in(function):
            variables[id(names), name] = names, name
    return tuple(variables.values())


@lru_cache(maxsize=256)
def _code_of(kind: Any) -> tuple[FunctionType, ...]:
    """Return the user-defined functions of a class, and those that they call by a global name."""
    values = (value for owner in kind.__mro__ for value in [*vars(owner).values()])
    return _with_called(function for value in values for function in functions_in(value))


@lru_cache(maxsize=256)
def _names_given_attributes(kind: Any) -> frozenset[str]:
    """Return the globals that the code of a class sets attributes of: a function has none before."""
    return frozenset(
        owner.argval
        for function in _code_of(kind)
        for owner, step in pairwise(dis.get_instructions(function.__code__))
        if step.opname == "STORE_ATTR" and owner.opname == "LOAD_GLOBAL"
    )


def _with_called(of_value: Iterable[FunctionType]) -> tuple[FunctionType, ...]:
    """Return functions, and those that they call by a global name or that of a module, and so on."""
    functions = [*of_value]
    functions_by_code: dict[CodeType, FunctionType] = {}
    while functions:
        function = functions.pop()
        if function.__code__ in functions_by_code:
            continue
        functions_by_code[function.__code__] = function
        called = (names.get(name) for names, name in _named(function))
        functions += [
            function
            for value in called
            if isinstance(value, FunctionType)
            for function in functions_in(value)
        ]
    return tuple(functions_by_code.values())


def functions_of(module: nn.Module) -> Iterator[FunctionType]:
    """Yield the user-defined functions of a module's classes, and those that they call."""
    kinds: set[Any] = {type(part) for part in modules_of(module)}
    for kind in kinds:
        yield from _code_of(kind)


def functions_of_calls(module: nn.Module) -> list[FunctionType]:
    """Return those of `functions_of` that a call may run; another method may be one of the script's loop.

    A method is run if the code of one that is run names it, if only as a text, or that of an object or a
    function that the module reaches. Python itself runs those with names such as ``__call__``.
    """
    owners = [owner for kind in _classes_in(module) for owner in kind.__mro__]
    fields = [field for owner in owners for field in [*vars(owner).items()]]
    methods = {id(member) for _, member in fields}
    beside = _functions_beside(value for _, value in reached(module) if id(value) not in methods)
    names = {"forward", *names_in(beside)}
    members = [(name, _with_called(functions_in(member))) for name, member in fields]
    run: list[FunctionType] = []
    while waiting := [functions for name, functions in members if name[:2] == "__" or name in names]:
        members = [(name, functions) for name, functions in members if functions not in waiting]
        of_members = [function for functions in waiting for function in functions]
        run += of_members
        names |= names_in(of_members)
        if _COMPUTED_NAMES & names:
            return [*functions_of(module)]
    return run


@lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """Return the globals that a function's code names, with those of the functions defined in it."""
    names: dict[str, None] = {}
    waiting = [code]
    while waiting:
        inner = waiting.pop()
        for step in dis.get_instructions(inner):
            if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME"):
                names[step.argval] = None
        waiting += [part for part in inner.co_consts if isinstance(part, CodeType)]
    return tuple(names)


@lru_cache(maxsize=4096)
def _attributes_in(code: CodeType) -> tuple[str, ...]:
    """Return the attributes that a function's code names, with those of the functions defined in it."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return (*code.co_names, *chain.from_iterable(map(_attributes_in, inner)))


class _Owner:
    """A module or a class of torch, and the functions that it had when this file was imported.

    A script may replace them, such as ``F.linear``, and helpers have those of torch. The layers of torch call
    them by these names, so no code of the script need name them.
    """

    def __init__(self, name: str, owner: Any) -> None:
        self._name, self._fields = name, vars(owner)
        self._first = dict(self._fields)
        self._last = [*self._fields.values()]
        self._of_script: list[tuple[Key, Any]] = []
        self._key: Hashable = None

    def of_script(self) -> list[tuple[Key, Any]]:
        """Return the functions that are others now, or new, and have code of the script."""
        self._read()
        return self._of_script

    def key(self) -> Hashable:
        """Return a value that changes with the code of one of them."""
        self._read()
        return self._key

    def _read(self) -> None:
        now = [*self._fields.values()]
        if now == self._last:  # each call compares them, and functions are equal only to themselves
            return
        self._last = now
        replaced = {
            f"{self._name}.{name}": value
            for name, value in [*self._fields.items()]
            if callable(value) and value is not self._first.get(name)
        }
        self._key = frozenset((name, _code(function)) for name, function in replaced.items())
        self._of_script = [
            ((-1, name), function)
            for name, function in replaced.items()
            if next(functions_in(function), None) is not None
        ]


_OWNERS = [
    _Owner(name, owner)
    for name, owner in (
        ("torch", torch),
        ("torch.Tensor", torch.Tensor),
        ("torch.nn.functional", functional),
        ("torch.linalg", torch.linalg),
        ("torch.special", torch.special),
        ("torch.fft", torch.fft),
    )
]


def key_of_replaced() -> Hashable:
    """Return a value that changes with the code of a function that replaces one of torch."""
    return tuple(owner.key() for owner in _OWNERS)


def _code(function: Any) -> Hashable:
    if isinstance(function, FunctionType):
        return function.__code__
    return function if isinstance(function, Hashable) else id(function)
