"""Finds the state of a module that its mirrors must have, beside the values of tensors.

If any of it differs from the last call, the module is sent again. A module with state that cannot be compared
stays unsplit.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from samestep.autopilot.script.call_account import is_user_code
from samestep.autopilot.split.guards import Attributes, python_state
from samestep.autopilot.state.reachable_state import (
    MODULE_ATTRIBUTES,
    PLAIN,
    Key,
    called_by,
    is_record,
    modules_of,
    reached,
)
from samestep.autopilot.state.saved_state import generator_state, is_generator
from samestep.base.errors import Error

_DEPTH = 8
"""The depth to which containers and objects are followed."""
_FEW = 64
"""Elements up to which the walk of reached values follows each."""
_CONTAINERS = (list, tuple, deque, set, frozenset, dict)


class MirrorError(Error):
    """A module can have no mirror; the message has the reason."""


def objects_of(module: nn.Module) -> list[Any]:
    """Return the submodules and tensors that a module has, and the objects that its forward can reach."""
    found: list[Any] = []
    for one in modules_of(module):
        found.append(one)
        found += one._parameters.values()  # noqa: SLF001 - faster than `parameters`
        found += one._buffers.values()  # noqa: SLF001
    found += [value for _, value in reached(module, _DEPTH) if not isinstance(value, PLAIN)]
    return found


def state_beside_tensors(module: nn.Module) -> Attributes:
    """Return all that a mirror has beside its tensors, as values that can be compared.

    Raises:
        MirrorError: some of it cannot be compared.
    """
    buffers = {(place, name) for place, one in enumerate(modules_of(module)) for name in one._buffers}  # noqa: SLF001
    found = {key: value for key, value in python_state(module).items() if key not in buffers}
    found.pop((0, "training of all"), None)  # goes with each call
    for place, one in enumerate(modules_of(module)):
        for name, parameter in one._parameters.items():  # noqa: SLF001
            if parameter is not None and vars(parameter):
                found[place, f"{name}.__dict__"] = tuple(fields_of_tensor(parameter).items())
        if type(one).__module__.startswith("torch."):
            found.update(((place, name), value) for name, value in _settings_of(one))
    found.update(_reached_state(module))
    for name, function in called_by(module):
        found[-2, name] = _code(function)
    return found


def _reached_state(module: nn.Module) -> Attributes:
    """Return the states of the generators, containers and arrays that a module reaches, and deep values."""
    found: dict[Key, Any] = {}
    for key, value in reached(module, _DEPTH):
        if is_generator(value):
            found[key] = repr(generator_state(value))
        elif isinstance(value, _CONTAINERS) and len(value) > _FEW:
            found[key] = tuple(map(id, _flat_elements(value)))
        elif isinstance(value, np.ndarray):
            found[key] = _digest(value)
        elif key[1].count(".") < _DEPTH and isinstance(value, PLAIN):
            found[key] = value
    return found


def fields_of_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return the flags, numbers and texts that a script has set as attributes of a tensor."""
    return {name: value for name, value in vars(tensor).items() if isinstance(value, PLAIN)}


def _settings_of(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the settings of one of torch's layers, such as a momentum."""
    for name, value in vars(layer).items():
        if name not in MODULE_ATTRIBUTES and isinstance(value, (*PLAIN, tuple)):
            yield name, value


def _flat_elements(values: Any) -> list[Any]:
    """Return the elements of a container that has too many to follow them.

    Raises:
        MirrorError: they have parts of their own, which may change.
    """
    elements = [*values, *values.values()] if isinstance(values, dict) else [*values]
    if any(isinstance(one, (*_CONTAINERS, np.ndarray, Tensor)) or is_record(one) for one in elements):
        raise MirrorError(f"it reads a {type(values).__name__} with {len(values)} parts that may change")
    return elements


def _digest(values: Any) -> str:
    if values.dtype == object:
        raise MirrorError("it reads an array of objects, which may change")
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest()


def _code(function: Any) -> Any:
    """Return a value that changes with the code of a function, or with its attributes."""
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return id(function)
    fields = tuple((name, value) for name, value in vars(function).items() if isinstance(value, PLAIN))
    return id(function.__code__), fields


def replaced_functions(module: nn.Module) -> str:
    """Return the name of a library's function that the script has replaced; helpers have the original."""
    for name, function in called_by(module):
        owner, _, attribute = name.partition(".")
        if attribute and isinstance(function, FunctionType) and is_user_code(function.__code__.co_filename):
            home = function.__module__
            if home and home.rpartition(".")[2] != owner and home in ("__main__", "__mp_main__"):
                return name
    return ""
