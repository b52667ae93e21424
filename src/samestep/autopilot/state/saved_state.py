"""Saves and restores the state that a call of a module may change, so that calls can be compared."""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import lru_cache, partial
from itertools import chain, islice
from math import inf, isfinite, prod
from operator import is_
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from samestep.autopilot.state.reachable_state import (
    CACHED,
    MODULE_ATTRIBUTES,
    MOST_KEYS,
    PLAIN,
    functions_in,
    globals_of,
    globals_of_class,
    is_record,
    modules_of,
    named_by,
    names_in_code,
    reached,
    scripts_classes,
    shared_fields,
)
from samestep.hooks import module_parts
from samestep.hooks.object_graph import Key, Parts, cells_of, stored_in, walk
from samestep.hooks.raw_containers import (
    base_of,
    contents_of,
    fields_of,
    refill,
    restore_fields,
    results_in,
    stored_fields,
)
from samestep.hooks.tensor_tree import tensors_in

Undo: TypeAlias = Callable[[], object]
SideOutput: TypeAlias = tuple[str, str]
"""An attribute to which a module assigns tensors: the name of the submodule, and that of the attribute."""

Held: TypeAlias = tuple[list[int | None], dict[SideOutput, tuple[int, ...]]]
"""The versions of a module's tensors, and the tensors that its attributes hold."""


class SavedState:
    """A copy of the attributes, buffers and globals that calls of a module may change."""

    def __init__(self, module: nn.Module, *, saves_weights: bool = False) -> None:
        """Save the state; with `saves_weights` also parameters that are held beside being registered."""
        self._module = module
        values = list(reached(module))
        values += stored_in_libraries(values)
        attributes = list(own_attributes(module))
        kept = [value for *_, value in attributes if _is_container(value)]
        registered = {*map(id, module_parts.modules(module))}
        unregistered = [
            (key, value)
            for key, value in values
            if isinstance(value, nn.Module) and id(value) not in registered
        ]
        owners = [module, *(value for _, value in unregistered)]
        parts = [*_distinct(part for owner in owners for part in module_parts.modules(owner))]
        self._undo = [
            *_saved_modules(parts),
            *_saved_names(module, [value for _, value in values]),
            *(
                undo
                for value in _distinct([*(value for _, value in values), *kept])
                for undo in _saved(value)
            ),
        ]
        endings = _owners_in_words(module)
        tensors = {name + endings[place]: value for (place, name), value in values if type(value) is Tensor}
        for (place, name), owner in unregistered:
            of_owner = module_parts.named_buffers(owner)
            tensors |= {f"{name}.{buffer}{endings[place]}": value for buffer, value in of_owner}
        self.held_weights = [*_distinct(value for _, value in values if isinstance(value, nn.Parameter))]
        """The parameters that are held in other ways than as those of a registered module, as in lists.

        A module may hold one in both ways, as Keras does: then calls use it by the other.
        """
        weights = self.held_weights if saves_weights else []
        self._weights = [(tensor, tensor.detach().clone()) for tensor in weights]
        buffers = {id(buffer) for part in parts for buffer in part._buffers.values()}  # noqa: SLF001
        self._named = {**dict(module_parts.named_buffers(module)), **tensors}
        """Buffers, and other tensors that may be written to in place."""
        self._values = [
            # Batch norm writes to its buffers without a new version.
            (tensor, tensor.detach().clone(), None if id(tensor) in buffers else version_of(tensor))
            for tensor in _distinct(self._named.values())
        ]
        self._saved = {id(tensor): value for tensor, value, _ in self._values}
        self._tensors = {(name, key): _ids(value) for name, key, value in _not_derived(module)}

    def restore(self) -> None:
        """Restore the saved state."""
        for undo in self._undo:
            undo()
        with torch.no_grad():
            for tensor, value, version in self._values:
                if (version is None or version_of(tensor) != version) and not _equal(tensor, value):
                    # Through `data`, so that the graph of an earlier call does not count it as a change.
                    tensor.data.copy_(value)
            for tensor, value in self._weights:
                if not _equal(tensor, value):
                    tensor.data.copy_(value)

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the current values of the tensors that may be written to in place."""
        now = {**self._named, **dict(module_parts.named_buffers(self._module))}
        return {name: tensor.detach().clone() for name, tensor in now.items()}

    def versions(self) -> list[int | None]:
        """Return the version of each tensor: the number of writes to it."""
        return [version_of(tensor) for tensor in self._named.values()]

    def are_rewritten(self) -> bool:
        """Return whether tensors have other values, or buffers are others, beside those of batch norm."""
        norms = (part for part in module_parts.modules(self._module) if isinstance(part, _NormBase))
        of_norms = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
        tensors = [tensor for tensor in self._named.values() if id(tensor) not in of_norms]
        now = module_parts.named_buffers(self._module)
        if any(self._named.get(name) is not buffer for name, buffer in now if id(buffer) not in of_norms):
            return True
        return not all(_equal(tensor, self._saved[id(tensor)]) for tensor in tensors)

    def rewritten(self, since: Sequence[int | None]) -> str | None:
        """Return the name of a tensor that was written to without a change, which a later batch may make."""
        for (name, tensor), version in zip(self._named.items(), since, strict=True):
            if version_of(tensor) != version and _equal(tensor, self._saved[id(tensor)]):
                return name
        return None

    def held(self) -> Held:
        """Return the versions of tensors, and the tensors that attributes hold; see `changed_since`."""
        return self.versions(), {key: _ids(value) for key, value in self.left().items()}

    def changed_since(self, before: Held) -> str | None:
        """Return the name of a tensor that was written to, or assigned to an attribute, since `held`."""
        (versions, ids), (versions_now, ids_now) = before, self.held()
        pairs = zip(self._named, versions, versions_now, strict=True)
        # An activation checkpoint counts a batch again, on each worker alike.
        written = (
            name
            for name, version, now in pairs
            if version != now and not name.endswith("num_batches_tracked")
        )
        assigned = (key for (owner, key), now in ids_now.items() if ids.get((owner, key)) != now)
        return next(chain(written, assigned), None)

    def counting_tensors(self) -> list[str]:
        """Return the names of tensors of one element that has changed by an integer, except batch norm's."""
        return [
            name
            for name, tensor in self._named.items()
            if tensor.numel() == 1
            and not tensor.is_complex()
            and not name.endswith("num_batches_tracked")
            and is_count(float(self._saved[id(tensor)]), float(tensor))
        ]

    def tensors(self, names: Iterable[str]) -> list[Tensor]:
        """Return the tensors with these names."""
        return [self._named[name] for name in names if name in self._named]

    def left(self) -> dict[SideOutput, Any]:
        """Return the attributes that hold new tensors."""
        return {
            (name, key): value
            for name, key, value in _not_derived(self._module)
            if (ids := _ids(value)) and ids != self._tensors.get((name, key))
        }


def stored_in_libraries(values: Iterable[tuple[Key, Any]]) -> list[tuple[Key, Any]]:
    """Return what the objects of libraries among the values of `reached` store, such as a meter of a module.

    It is the first of it, since a trainer has very many values, without the trainer's models and data.
    """
    return _stored_in([(key, value) for key, value in values if _is_of_library(value)])


def named_in_libraries(module: nn.Module, values: Iterable[tuple[Key, Any]]) -> list[tuple[Key, Any]]:
    """Return the part of `stored_in_libraries` that is in objects which the script's code names.

    A trainer, which a library sets as an attribute of a module, counts each step.
    """
    roots = [(key, value) for key, value in values if _is_of_library(value)]
    names = names_in_code(module) if roots else set()
    return _stored_in([(key, value) for key, value in roots if key[1].partition(".")[0] in names])


def _stored_in(roots: Sequence[tuple[Key, Any]]) -> list[tuple[Key, Any]]:
    stored = walk(roots, _stored_in_library, depth=_DEEPEST_IN_LIBRARIES)
    return [(key, value) for key, value in islice(stored, _MOST_STORED) if not _is_of_trainer(value)]


def _is_of_trainer(value: Any) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return prod(value.shape) > _MOST_NUMBERS
    return isinstance(value, nn.Module)


def _stored_in_library(value: Any) -> Parts:
    if base_of(value) is not None:
        return stored_in(value, most=MOST_KEYS)
    return [*fields_of(value).items()] if _is_of_library(value) or _has_fields(value) else []


def _is_of_library(value: Any) -> bool:
    """Return whether a value is an object of a library beside torch that has fields, and is no record."""
    kind: Any = type(value)
    return _may_be_of_library(kind) and stored_fields(value) is not None and not is_record(value)


@lru_cache(maxsize=1024)
def _may_be_of_library(kind: Any) -> bool:
    is_left_alone = str(kind.__module__).partition(".")[0] in _LEFT_ALONE
    return not (is_left_alone or issubclass(kind, (nn.Module, *_NO_OBJECTS, *_LISTED)))


def _owners_in_words(module: nn.Module) -> list[str]:
    """Return the text after the name of a value for each place in the keys of `reached`; the last is -1."""
    names = {id(part): name and f" of {name}" for name, part in module_parts.named_modules(module)}
    return [*(names[id(part)] for part in modules_of(module)), " outside of the model"]


def _saved_modules(parts: Iterable[nn.Module]) -> Iterator[Undo]:
    """Yield functions that restore the attributes, buffers and parameters of modules."""
    for part in parts:
        yield partial(restore_fields, part, fields_of(part))  # of its slots, too
        if not isinstance(part, torch.jit.ScriptModule):  # its tensors stay the same objects
            # Its tensors, submodules and hooks: a call may swap, add or remove each of them.
            held: list[Any] = [*filter(_is_refilled, map(vars(part).get, MODULE_ATTRIBUTES))]
            yield partial(_refill_all, [(each, each.copy()) for each in held])


def _is_refilled(held: Any) -> bool:
    return type(held) in (dict, OrderedDict, set)


def _refill_all(kept: Sequence[tuple[Any, Any]]) -> None:
    for held, contents in kept:
        if held or contents:
            refill(held, contents)


def _saved_names(module: nn.Module, values: Sequence[Any]) -> Iterator[Undo]:
    """Yield functions that restore globals, variables and attributes of functions, and class attributes."""
    of_functions = [pair for value in values for pair in named_by(value)]
    of_classes = [pair for value in values if isinstance(value, type) for pair in globals_of_class(value)]
    for names, name in [*globals_of(module), *of_functions, *of_classes]:
        if name in names:
            yield partial(names.__setitem__, name, names[name])
        else:  # a call may make it
            yield partial(names.pop, name, None)
    for value in values:
        for function in functions_in(value):
            yield partial(refill, vars(function), dict(vars(function)))
            yield from (partial(setattr, cell, "cell_contents", kept) for _, cell, kept in cells_of(function))
    kinds: set[Any] = {type(part) for part in module_parts.modules(module)}
    owners = [owner for kind in kinds for owner in scripts_classes(kind)]
    plain = [value for value in values if isinstance(value, (type, ModuleType))]
    for owner in _distinct([*owners, *plain]):
        yield partial(_reset, owner, _own_fields(owner))


def _saved(value: Any) -> Iterator[Undo]:
    """Yield functions that restore the contents of a container, an array, a generator, and of an object."""
    yield from _saved_parts(value)
    if isinstance(value, np.ndarray):
        yield partial(_refill_array, value, value.copy())
    elif is_generator(value):
        yield partial(_set_generator_state, value, generator_state(value))
    elif isinstance(value, (*_WEAK_DICTS, CACHED, Optimizer, LRScheduler)):
        yield from _saved_of_library(value)
    if _has_fields(value):
        for member in [*vars(type(value)).values()]:
            if isinstance(member, CACHED):
                yield from _saved(member)


def _saved_parts(value: Any) -> Iterator[Undo]:
    """Yield functions that restore the items of a container, and the fields of an object."""
    if _is_container(value):
        yield partial(refill, value, contents_of(value))
    if _has_fields(value) or _is_of_library(value):  # it may be a container, too
        yield partial(restore_fields, value, fields_of(value))


def _has_fields(value: Any) -> bool:
    return not isinstance(value, PLAIN) and is_record(value)


_WEAK_DICTS = WeakKeyDictionary, WeakValueDictionary


def _saved_of_library(value: Any) -> Iterator[Undo]:
    """Yield functions that restore a cache of results, a weak dictionary, or the settings of an optimizer."""
    if isinstance(value, CACHED):
        yield partial(_forget, value, _misses(value), {*results_in(value)})
    elif isinstance(value, _WEAK_DICTS):
        yield partial(_refill_weak, value, dict(value))
    else:  # forward may set a learning rate
        optimizer = value if isinstance(value, Optimizer) else value.optimizer
        for fields in vars(value), *optimizer.param_groups:
            yield partial(refill, fields, dict(fields))


_clears: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number of times that each function's cache was cleared here, after which its misses count from 0."""


def _misses(function: Any) -> tuple[int, int]:
    """Return a value that changes with each result that is added to a function's cache."""
    return _clears.get(function, 0), function.cache_info().misses


def _forget(function: Any, misses: tuple[int, int], keys: Set[Any]) -> None:
    """Remove the results that have been added to a function's cache; they may be of other weights.

    The earlier ones stay: they may be random numbers, or of a setting that the script has changed since.
    """
    if _misses(function) == misses:
        return
    results = results_in(function)
    for key in [key for key in results if key not in keys]:
        del results[key]  # the cache has no order of a removed key: Python drops it when it is full
    if function.cache_info().currsize != len(results):
        function.cache_clear()
        _clears[function] = _clears.get(function, 0) + 1


def _refill_weak(references: Any, contents: Mapping[Any, Any]) -> None:
    references.clear()
    references.update(contents)


def _reset(owner: Any, fields: Mapping[str, Any]) -> None:
    """Restore the attributes of a class or a Python module, without those that a call has made."""
    for name in _own_fields(owner).keys() - fields.keys():
        delattr(owner, name)
    for name, value in fields.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)


def _refill_array(array: Any, values: Any) -> None:
    if array.flags.writeable:
        array[...] = values


def _is_container(value: Any) -> bool:
    return base_of(value) in (list, dict, OrderedDict, set, deque)


def _own_fields(owner: Any) -> dict[str, Any]:
    """Return the attributes of a class or a Python module, except functions and classes."""
    if isinstance(owner, type) and issubclass(owner, nn.Module):
        fields = [*vars(owner).items()]
        return {name: field for name, field in fields if not name.startswith("__") and not callable(field)}
    return shared_fields(owner)


def is_generator(value: Any) -> bool:
    """Return whether a value is a random generator object."""
    return isinstance(value, (torch.Generator, random.Random, np.random.Generator, np.random.RandomState))


def generator_state(generator: Any) -> Any:
    """Return the state of a random generator."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def comparable_state(generator: Any) -> Any:
    """Return a value that changes with the state of a random generator; a long tensor's text would not."""
    state = generator_state(generator)
    return state.numpy().tobytes() if isinstance(state, Tensor) else repr(state)


def _set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a random generator."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def version_of(tensor: Tensor) -> int | None:
    """Return the version of a tensor; None for an inference tensor, which has none."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001


_WHOLE = 1e-9  # largest distance from an integer that the rounding of a float has


def is_count(before: float, after: float) -> bool:
    """Return whether a number has changed by an integer."""
    change = after - before
    return isfinite(change) and round(change) != 0 and abs(change - round(change)) < _WHOLE


def _equal(tensor: Tensor, value: Tensor) -> bool:
    return tensor.shape == value.shape and torch.equal(tensor.detach(), value)


def _distinct(values: Any) -> Iterator[Any]:
    """Yield each object once."""
    seen: set[int] = set()
    for value in values:
        if id(value) not in seen:
            seen.add(id(value))
            yield value


class HeldTensors:
    """The attributes of the script's modules before a call, to find tensors that it keeps unexpectedly."""

    def __init__(self, module: nn.Module, values: Iterable[Any]) -> None:
        """Note the attributes; `values` are what the module reaches, whose parts are restored, too."""
        parts = (part for part in modules_of(module) if not type(part).__module__.startswith("torch."))
        self._before = [(part, dict(vars(part)), _held_by(part)) for part in parts]
        self._buffers = [(part._buffers, dict(part._buffers)) for part, *_ in self._before]  # noqa: SLF001
        self._undo = [undo for value in _distinct(values) for undo in _saved(value)]
        self._globals = [(names, name, names[name]) for names, name in globals_of(module) if name in names]

    def kept(
        self, module: nn.Module, expected: Iterable[SideOutput], *, replaces_buffers: bool = False
    ) -> str | None:
        """Return an attribute that holds other tensors than before the call, beside the expected ones."""
        known = {(id(module_parts.submodule(module, name)), key) for name, key in expected}
        for buffers, before in self._buffers:
            for key, buffer in [*buffers.items()]:
                if buffer is not before.get(key) and not replaces_buffers:
                    return key
        for part, _, held in self._before:
            for key, ids in _held_by(part).items():
                if held.get(key) != ids and (id(part), key) not in known:
                    return key
        return None

    def restore(self) -> None:
        """Restore attributes, globals, containers, objects, arrays, generators and cached results."""
        for undo in self._undo:
            undo()
        for names, name, value in self._globals:
            names[name] = value
        for part, attributes, _ in self._before:
            refill(vars(part), attributes)
        for buffers, before in self._buffers:
            if any(buffer is not before.get(key) for key, buffer in buffers.items()):
                refill(buffers, before)


def _held_by(part: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the tensors that the attributes of a module hold, by the names of these."""
    fields = dict(vars(part))  # at once: another thread may set or remove an attribute
    names = fields.keys() - MODULE_ATTRIBUTES
    return {key: ids for key in names if type(fields[key]) not in PLAIN and (ids := _ids(fields[key]))}


def own_attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield the attributes of a module and its submodules that `nn.Module` does not define."""
    for name, part in module_parts.named_modules(module):
        fields = [*vars(part).items()]
        yield from ((name, key, value) for key, value in fields if key not in MODULE_ATTRIBUTES)


def _not_derived(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield the attributes but a recurrent layer's list of its weights, to which it assigns each of them."""
    for name, key, value in own_attributes(module):
        if key == "_flat_weights" and isinstance(layer := module_parts.submodule(module, name), nn.RNNBase):
            named = (getattr(layer, each, None) for each in layer._flat_weights_names)  # noqa: SLF001
            if all(map(is_, value, named)):
                continue
        yield name, key, value


def carried_by(module: nn.Module) -> tuple[SideOutput, ...]:
    """Return the attributes of a module and its submodules that hold tensors with a graph."""
    # Most modules have none, and names take most of the time.
    if not any(
        _has_graph(value)
        for part in modules_of(module)
        for key in vars(part).keys() - MODULE_ATTRIBUTES
        if type(value := vars(part).get(key)) not in PLAIN
    ):
        return ()
    return tuple((name, key) for name, key, value in _not_derived(module) if _has_graph(value))


def _has_graph(value: Any) -> bool:
    return any(tensor.requires_grad and not tensor.is_leaf for tensor in tensors_in(value))


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(map(id, tensors_in(value)))


_NO_OBJECTS = (*PLAIN, Tensor, Enum, type, ModuleType)
_LISTED = (FunctionType, MethodType, BuiltinMethodType, np.ndarray)
_LEFT_ALONE = ("torch", "samestep", "logging", "threading", "multiprocessing", "concurrent", "asyncio")
"""Packages whose objects have no state of a call, or that of other threads, which go on meanwhile."""
_DEEPEST_IN_LIBRARIES = 6
"""The number of steps from an object of a library to the deepest part that is saved: a guess."""
_MOST_STORED = 256
"""Values in the objects of libraries that each call compares: a guess."""
_MOST_NUMBERS = 1 << 20
"""Elements of a tensor or an array above which it is taken for data that no call writes to: a guess."""
_MOST_SAVED = 1000
"""The number of containers and objects that are saved: a guess, as each call saves them."""


class SavedArguments:
    """The containers, arrays, objects and generators in the arguments of a call, with their contents."""

    def __init__(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        reached = walk([((0, ""), (arguments, dict(named)))], _parts, depth=inf)
        objects = _distinct(value for _, value in reached if not isinstance(value, _NO_OBJECTS))
        kept = [*islice(objects, _MOST_SAVED)]
        self._arrays = [(value, value.copy()) for value in kept if isinstance(value, np.ndarray)]
        kept = [value for value in kept if not isinstance(value, np.ndarray)]
        self._kept = [(value, *_contents_and_fields(value)) for value in kept]
        self._generators = [(value, generator_state(value)) for value in kept if is_generator(value)]
        self._states = [comparable_state(value) for value, _ in self._generators]

    def are_changed(self) -> bool:
        """Return whether a container or an object has other contents, or a generator another state."""
        for value, *before in self._kept:
            for contents, current in zip(before, _contents_and_fields(value), strict=True):
                if not _are_same(list(_elements(contents)), list(_elements(current))):
                    return True
        if any(array.tobytes() != before.tobytes() for array, before in self._arrays):
            return True
        return [comparable_state(value) for value, _ in self._generators] != self._states

    def restore(self) -> None:
        """Restore the contents and the states."""
        for generator, state in self._generators:
            _set_generator_state(generator, state)
        for array, before in self._arrays:
            if array.flags.writeable:
                array[...] = before
        for value, contents, fields in self._kept:
            if contents is not None:
                refill(value, contents)
            if fields:
                restore_fields(value, fields)


def _contents_and_fields(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a container, or None, and the fields of an object."""
    contents = contents_of(value) if base_of(value) not in (None, tuple, frozenset) else None
    has_fields = not isinstance(value, (FunctionType, MethodType, BuiltinMethodType))
    return contents, fields_of(value) if has_fields else {}


def _parts(value: Any) -> Parts:
    return [] if isinstance(value, _NO_OBJECTS) else stored_in(value)


def _elements(contents: Any) -> Iterator[Any]:
    if isinstance(contents, dict):
        yield from contents.keys()
        yield from contents.values()
    elif contents is not None:
        yield from contents


def _are_same(before: list[Any], after: list[Any]) -> bool:
    if len(before) != len(after):
        return False
    plain = (
        type(first) is type(second) and isinstance(first, PLAIN)
        for first, second in zip(before, after, strict=True)
    )
    return all(
        first is second or (is_plain and (first == second or repr(first) == repr(second)))
        for first, second, is_plain in zip(before, after, plain, strict=True)
    )
