"""Pickles modules and arguments for helpers: classes and functions of the script by value, tensors apart.

Helpers run no code of the script but that of the calls, so they cannot import its modules.
"""

import importlib
import marshal
import pickle
import re
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from samestep.autopilot.script.call_account import is_user_code, is_users_code
from samestep.autopilot.state.reachable_state import (
    CACHED,
    COMPILED,
    functions_of_calls,
    globals_of,
    names_in,
    runs_compiled,
    scripts_classes,
)
from samestep.hooks import module_parts
from samestep.hooks.object_graph import cells_of
from samestep.hooks.raw_containers import (
    add_results,
    base_of,
    contents_of,
    empty,
    fields_of,
    refill,
    restore_fields,
    results_of,
    setting_of,
)
from samestep.hooks.raw_containers import cached as made_cached

Reference = Callable[[Tensor], Any]
"""Returns what stands for a tensor; None to pickle it as it is."""
_FILLED = (OrderedDict, dict, list, deque, set)
"""Containers whose subclasses are filled without their methods, which may refuse or change what they get."""
_TYPING = "typing", "typing_extensions"
_NAMED_TYPES = {"NewType": "__supertype__", "TypeAliasType": "__value__", "ParamSpec": "", "TypeVarTuple": ""}
"""The types that pickle looks for by their names only, and the attribute of each that has its content."""
_OF_PICKLE = {
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
}
"""The methods by which a class defines how it is pickled."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes references in place of tensors."""

    def __init__(self, file: BytesIO, refer: Reference) -> None:
        super().__init__(file, protocol=5)
        self._refer = refer
        self.has_unsent = False
        """Whether something has a stand-in."""

    def persistent_id(self, value: Any) -> Any:
        """Return the reference of a tensor; None for all other values."""
        return self._refer(value) if isinstance(value, Tensor) else None

    def reducer_override(self, value: Any) -> Any:
        """Return how to make a value that pickle would find by its name, or refuse."""
        of_kind = _OF_KIND.get(type(value))
        reduced = (
            (of_kind and of_kind(value))
            or _reduced_code(value)
            or _reduced_by_name(value)
            or _reduced_type(value)
            or _reduced_object(value)
            or self._reduced_unsent(value)
        )
        return super().reducer_override(value) if reduced is None else reduced

    def _reduced_unsent(self, value: Any) -> tuple[Any, ...] | None:
        """Return a stand-in for an object in C that pickle refuses, or a method of it; None for others."""
        owner = value.__self__ if isinstance(value, BuiltinFunctionType) else value
        if not self._is_refused(owner):
            return None
        self.has_unsent = True
        return Unsent, (type(owner).__name__,)

    def _is_refused(self, value: Any) -> bool:
        kind: Any = type(value)
        methods = kind.__reduce_ex__, kind.__reduce__
        if (
            kind.__dictoffset__
            or kind in self.dispatch_table
            or isinstance(value, (type, FunctionType, ModuleType))
            or methods != (object.__reduce_ex__, object.__reduce__)
        ):
            return False
        try:
            value.__reduce_ex__(5)
        except TypeError:
            return True
        return False

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        """See `cloudpickle.Pickler`, which needs the annotations of each function."""
        try:
            function.__annotations__  # noqa: B018 - since Python 3.14 this evaluates them
        except Exception:  # noqa: BLE001 - those that only a type checker imports, or that fail on their own
            function = _with_text_annotations(function)
        make, arguments, state, *rest = super()._dynamic_function_reduce(function)
        if not _is_made_in_library(function):
            return make, arguments, state, *rest
        code, _, *settings = arguments
        state[1]["__globals__"] = {}  # they are those of the library's module, which a helper has too
        return _made_in_library, (function.__module__, make, code, *settings), state, *rest


def _is_made_in_library(function: FunctionType) -> bool:
    """Return whether the module of a function is a library's, so that a helper can import it."""
    module = sys.modules.get(function.__module__ or "")
    is_there = module is not None and vars(module) is function.__globals__
    return is_there and not is_users_code(function.__code__, function.__globals__)


def _made_in_library(name: str, make: Callable[..., Any], code: CodeType, *settings: Any) -> Any:
    """Make a function that one of a library has made, as a hook, with the values of that library's module."""
    return make(code, vars(importlib.import_module(name)), *settings)


def _with_text_annotations(function: FunctionType) -> FunctionType:
    """Return a copy of a function whose annotations are texts, which nothing evaluates."""
    copied = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    vars(copied).update(vars(function))
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__"):
        setattr(copied, name, getattr(function, name))
    annotations = importlib.import_module("annotationlib")  # of Python 3.14
    copied.__annotations__ = annotations.get_annotations(function, format=annotations.Format.STRING)
    return copied


def _reduced_code(value: Any) -> tuple[Any, ...] | None:
    """Return how to make code, a function, or a module such as ``torch.ops``; None for what pickle knows."""
    if isinstance(value, CodeType):  # with the name of its file, by which code of the user is known
        return marshal.loads, (marshal.dumps(value),)
    if isinstance(value, torch.jit.ScriptFunction):
        return _compiled, (value.save_to_buffer({}),)
    if isinstance(value, FunctionType) and runs_compiled(value) and "self" in value.__code__.co_freevars:
        context = next(kept for name, _, kept in cells_of(value) if name == "self")
        return context, (vars(value)[COMPILED],)  # what `torch.compile` returns if it gets no function
    cached = value.__wrapped__ if isinstance(value, CACHED) else None
    if isinstance(cached, FunctionType) and is_users_code(cached.__code__, cached.__globals__):
        return made_cached, (cached, value.cache_parameters()), results_of(value), None, None, add_results
    return _reduced_module(value) if isinstance(value, ModuleType) else None


def _reduced_module(module: ModuleType) -> tuple[Any, ...] | None:
    """Return how to make a module of the script, or find one such as ``torch.ops``; None for others."""
    if type(module) is not ModuleType:
        is_there = sys.modules.get(module.__name__) is module
        return (importlib.import_module, (module.__name__,)) if is_there else None
    if cloudpickle.cloudpickle._should_pickle_by_reference(module):  # noqa: SLF001 - no public spelling
        return None
    names = {name: value for name, value in vars(module).items() if name != "__builtins__"}
    return ModuleType, (module.__name__,), names  # made before its names, as modules may import each other


def _reduced_by_name(value: Any) -> tuple[Any, ...] | None:
    """Return how to find a value that a module has by a name, but pickle does not find; None for others."""
    if type(value).__module__ == "sys" and getattr(sys, type(value).__name__, None) is value:
        return getattr, (sys, type(value).__name__)  # `sys.version_info`, whose class has the same name
    module = value.__self__ if isinstance(value, BuiltinFunctionType) else None
    if isinstance(module, ModuleType) and getattr(module, value.__name__, None) is not value:
        return _of_module, (module.__name__, value.__name__)
    if isinstance(value, type) and value.__qualname__ != value.__name__ and _has_own_name(value):
        return _of_module, (value.__module__, value.__name__)  # such as torch's `SDPBackend`
    return None


def _has_own_name(kind: type) -> bool:
    """Return whether a library's module has a class by its own name."""
    module = sys.modules.get(kind.__module__)
    is_found = getattr(module, kind.__name__, None) is kind
    return is_found and not is_user_code(str(getattr(module, "__file__", "")))


def _of_module(module: str, name: str) -> Any:
    """Return what a module has by a name: that of the helper, where the script has replaced it."""
    return getattr(importlib.import_module(module), name)


def _reduced_type(value: Any) -> tuple[Any, ...] | None:
    """Return how to make a named type of `typing` that the script has made, as in annotations; else None."""
    kind = type(value)
    if kind.__module__ not in _TYPING or kind.__name__ not in _NAMED_TYPES:
        return None
    module = sys.modules.get(value.__module__)
    file = str(getattr(module, "__file__", ""))
    if getattr(module, value.__name__, None) is value and not is_user_code(file):
        return None  # a library's, which a helper finds by its name
    content = _NAMED_TYPES[kind.__name__]
    return kind, (value.__name__, *([_content(value, content)] if content else []))


def _content(named: Any, attribute: str) -> Any:
    """Return what a type is a name for; a text where that has the name itself, or cannot be evaluated."""
    try:
        content = getattr(named, attribute)
    except Exception:  # noqa: BLE001 - an alias evaluates the script's code, as an annotation does
        return named.__name__
    return repr(content) if re.search(rf"\b{named.__name__}\b", repr(content)) else content


def _cached_property(function: Callable[[Any], Any], name: str | None) -> cached_property[Any]:
    made = cached_property(function)
    made.attrname = name
    return made


def _operators(qualified: str) -> Any:
    """Return an operator of ``torch.ops`` by a name such as ``aten::add``."""
    library, name = qualified.split("::")
    return getattr(getattr(torch.ops, library), name)


class UnsentError(Exception):
    """A slice uses an object that helpers do not get."""


def _refuse(unsent: "Unsent", *_: object) -> Any:
    raise UnsentError(f"it uses an object that no other process can have: {unsent.kind}")


class Unsent:
    """An object of a helper in place of one that cannot be sent; a slice that uses it fails.

    A module may have a lock that no call uses. A copy of it would be another lock, which no code releases.

    Args:
        kind: the name of the object's class.
    """

    __slots__ = ("kind",)
    __getattr__ = __enter__ = __exit__ = __bool__ = _refuse  # calling it and the like are errors anyway

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Lost:
    """An object that is gone, for weak references to it."""


def _weak_reference(value: Any) -> weakref.ref[Any]:
    """Return a reference to an object; for None to one that does not exist any more."""
    return weakref.ref(_Lost() if value is None else value)


_OF_KIND: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    cached_property: lambda value: (_cached_property, (value.func, value.attrname)),  # has a lock before 3.12
    weakref.ref: lambda value: (_weak_reference, (value(),)),
    weakref.WeakKeyDictionary: lambda value: (weakref.WeakKeyDictionary, (dict(value),)),
    weakref.WeakValueDictionary: lambda value: (weakref.WeakValueDictionary, (dict(value),)),
    torch.memory_format: lambda value: (getattr, (torch, str(value).removeprefix("torch."))),
    torch.finfo: lambda value: (torch.finfo, (getattr(torch, value.dtype),)),
    torch.iinfo: lambda value: (torch.iinfo, (getattr(torch, value.dtype),)),
    torch._ops.OpOverloadPacket: lambda value: (_operators, (value._qualified_op_name,)),  # noqa: SLF001
    torch._ops.OpOverload: lambda value: (getattr, (value.overloadpacket, value._overloadname)),  # noqa: SLF001
}
"""The classes whose objects pickle and cloudpickle refuse, each with a function that reduces one."""


def _reduced_object(value: Any) -> tuple[Any, ...] | None:
    """Return how to make a container, a module or a proxy; None for those that pickle can make."""
    if base_of(value) in _FILLED and type(value) not in _FILLED and _is_stored_as_base(type(value)):
        is_own_fields = getattr(value, "__dict__", None) is value
        state = contents_of(value), None if is_own_fields else fields_of(value)
        return empty, (type(value), setting_of(value)), state, None, None, _fill
    if isinstance(value, nn.Module) and parametrize.is_parametrized(value):
        return _parametrized, (type(value).__mro__[1], vars(value))
    if _reads_fields(type(value)) or _refuses(value) or _saves_itself(value):
        return _without_fields, (type(value),), fields_of(value), None, None, restore_fields
    return None


def _is_stored_as_base(kind: type) -> bool:
    """Return whether a class leaves it to the class that stores its items how it is pickled."""
    owners = [owner for owner in kind.__mro__ if owner not in (object, *_FILLED, defaultdict)]
    return not any({"__reduce__", "__reduce_ex__", "__getstate__"} & vars(owner).keys() for owner in owners)


def _reads_fields(kind: Any) -> bool:
    """Return whether a plain class has a `__getattr__`, which pickle would call before there are fields.

    That of a proxy reads a field itself, and would call itself without an end.
    """
    owners = [vars(owner) for owner in kind.__mro__ if owner is not object]
    names = "__getattr__", "__getattribute__"
    reads = any(isinstance(owner.get(name), FunctionType) for owner in owners for name in names)
    return reads and kind.__new__ is object.__new__ and not any(_OF_PICKLE & owner.keys() for owner in owners)


def _refuses(value: Any) -> bool:
    """Return whether a plain object refuses to be pickled: into a file, which a helper does not read.

    Accelerate makes such an object of the forward of a model in half precision.
    """
    kind: Any = type(value)
    state_of = getattr(kind, "__getstate__", None)
    if not isinstance(state_of, FunctionType) or kind.__new__ is not object.__new__:
        return False
    try:
        state_of(value)
    except Exception:  # noqa: BLE001 - of any object of the script
        return True
    return False


def _saves_itself(value: Any) -> bool:
    """Return whether a module of another library than torch, or of the script, defines how it is pickled.

    Keras saves a model into bytes, with copies of its weights; helpers need the weights themselves.
    """
    if not isinstance(value, nn.Module):
        return False
    owners = (owner for owner in type(value).__mro__ if owner is not object)
    saving = [owner for owner in owners if {"__reduce__", "__reduce_ex__"} & vars(owner).keys()]
    return any(owner.__module__.partition(".")[0] != "torch" for owner in saving)


def _without_fields(kind: type) -> Any:
    return object.__new__(kind)


def _fill(container: Any, state: tuple[Any, Mapping[str, Any] | None]) -> None:
    contents, fields = state
    refill(container, contents)
    if fields is None:  # a dict whose items are its attributes
        container.__dict__ = container
    else:
        restore_fields(container, fields)


def _compiled(content: bytes) -> Callable[..., Any]:
    """Return a function that TorchScript has compiled; torch loads it as the only method of a module."""
    return torch.jit.load(BytesIO(content)).forward  # type: ignore[no-untyped-call, no-any-return]


def _parametrized(kind: type[nn.Module], fields: Mapping[str, Any]) -> nn.Module:
    """Return a module some of whose tensors are computed from others; torch gives each a class of its own."""
    module = kind.__new__(kind)
    vars(module).update(fields)
    parametrize._inject_new_class(module)  # noqa: SLF001 - no public spelling
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)  # noqa: SLF001
    return module


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, resolve: Callable[[Any], Tensor]) -> None:
        super().__init__(file)
        self._resolve = resolve

    def persistent_load(self, reference: Any) -> Tensor:
        """Return the tensor of a reference."""
        return self._resolve(reference)


def pickled(value: Any, refer: Reference) -> bytes:
    """Return a value as bytes, with references in place of its tensors."""
    content, _ = _dumped(value, refer)
    return content


def _dumped(value: Any, refer: Reference) -> tuple[bytes, bool]:
    """Return a value as bytes, and whether something in it has a stand-in."""
    buffer = BytesIO()
    pickler = _Pickler(buffer, refer)
    pickler.dump(value)
    return buffer.getvalue(), pickler.has_unsent


def pickled_module(module: nn.Module, refer: Reference) -> bytes:
    """Return a module as `pickled` does.

    Raises:
        UnsentError: code that a call may run names an object that has no copy. Only a helper would notice
            that, while a check on the main rank put more into a queue, or a log, than one call does.
    """
    content, has_unsent = _dumped(module, refer)
    for name, value in _named_by_calls(module) if has_unsent else ():
        _, is_unsent = _dumped(value, lambda _: 0)
        if is_unsent:
            raise UnsentError(f"it may use {name}, and no other process can have a copy of it")
    return content


def _named_by_calls(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes and globals that code names which a call of a module may run."""
    names = names_in(function for function in functions_of_calls(module) if function.__name__ != "__init__")
    kinds = {owner for part in module_parts.modules(module) for owner in scripts_classes(type(part))}
    owners = [vars(owner) for owner in (*module_parts.modules(module), *kinds)]
    for fields in owners:
        yield from ((name, value) for name, value in [*fields.items()] if name in names)
    for known, name in globals_of(module):
        value = known.get(name)
        if not isinstance(value, ModuleType):
            yield name, value
        elif is_user_code(str(getattr(value, "__file__", ""))):
            yield from ((part, vars(value)[part]) for part in names & vars(value).keys())


def unpickled(content: bytes, resolve: Callable[[Any], Tensor]) -> Any:
    """Return the value of `pickled`."""
    return _Unpickler(BytesIO(content), resolve).load()


@contextmanager
def scripts_modules_by_value() -> Iterator[None]:
    """Pickle the functions and classes of the script's modules by value in the block."""
    known = cloudpickle.list_registry_pickle_by_value()
    modules = [module for module in _modules_of_script() if module.__name__ not in known]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


@contextmanager
def classes_of(numbers: WeakKeyDictionary[type, str]) -> Iterator[None]:
    """Let helpers share the classes of the script among all that is pickled with the same `numbers`.

    Those of two mirrors differ, since their functions see other globals. The arguments of a call have the
    classes of its mirror, so that ``mode is Mode.FAST`` and ``isinstance(batch, Batch)`` hold in it.

    Args:
        numbers: cloudpickle's number of each class, which this extends; empty at first.
    """
    of_process = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001 - no public spelling
    before = {**of_process}
    of_process.clear()
    of_process.update(numbers)
    try:
        yield
    finally:
        numbers.update(of_process)
        of_process.clear()
        of_process.update(before)


def files_of_script() -> dict[str, str]:
    """Return the files of the script's modules, by their names."""
    return {module.__name__: str(module.__file__) for module in _modules_of_script()}


def _modules_of_script() -> Iterator[ModuleType]:
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if (
            isinstance(module, ModuleType)
            and name == module.__name__
            and isinstance(file, str)
            and is_user_code(file)
        ):
            yield module
