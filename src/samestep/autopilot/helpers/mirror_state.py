"""Finds the state of a module that its mirrors must have, beside the values of tensors.

If any of it differs from the last call, the module is sent again. A module with state that cannot be compared
stays unsplit.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import FunctionType, MethodType
from typing import Any
from weakref import ref

import numpy as np
from torch import Tensor, nn

from samestep.autopilot.script.call_account import is_user_code
from samestep.autopilot.split.guards import Attributes, Reach, python_state
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
from samestep.hooks.raw_containers import base_of, elements, is_mapping, items, length

_DEPTH = 8
"""The depth to which containers and objects are followed."""
_FEW = 64
"""Elements up to which the walk of reached values follows each."""


class MirrorError(Error):
    """A module can have no mirror; the message has the reason."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state that mirrors of a module must have, beside values of tensors and settings of layers."""

    values: Attributes
    """All of it that can be compared."""
    objects: Sequence[Any]
    """The submodules and tensors of the module, and the objects that its forward can reach."""

    @classmethod
    def now(cls, module: nn.Module, reach: Reach | None = None) -> "MirrorState":
        """Return the present state; `reach` is as in `python_state`.

        Raises:
            MirrorError: some of it cannot be compared.
        """
        found = dict(python_state(module, reach))
        found.pop((0, "training of all"), None)  # goes with each call
        objects: list[Any] = []
        for place, one in enumerate(modules_of(module)):
            objects.append(one)
            if one._parameters:  # noqa: SLF001 - faster than `parameters`
                objects += one._parameters.values()  # noqa: SLF001
                for name, parameter in one._parameters.items():  # noqa: SLF001
                    if parameter is not None and parameter.__dict__:
                        found[place, f"{name}.__dict__"] = tuple(fields_of_tensor(parameter).items())
            if one._buffers:  # noqa: SLF001
                objects += one._buffers.values()  # noqa: SLF001
                for name in one._buffers:  # noqa: SLF001 - their numbers go with each call
                    found.pop((place, name), None)
        for key, value in reached(module, _DEPTH):
            if not isinstance(value, PLAIN):
                objects.append(value)
            _add_reached(key, value, found)
        for name, function in called_by(module):
            found[-2, name] = _code(function)
        return cls(found, objects)


def _add_reached(key: Key, value: Any, found: dict[Key, Any]) -> None:
    """Add the state of a generator, container or array that a module reaches, or a deep value."""
    if isinstance(value, PLAIN):
        if key[1].count(".") < _DEPTH:
            found[key] = value
    elif is_generator(value):
        found[key] = repr(generator_state(value))
    elif base_of(value) is not None and length(value) > _FEW:
        found[key] = tuple(map(id, _flat_elements(value)))
    elif isinstance(value, np.ndarray):
        found[key] = _digest(value)


class LayerSettings:
    """The settings of torch's layers in a module, such as a momentum, when they were last the same.

    Numbers do not change in place, so most layers are compared by the identity of their attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = (one for one in modules_of(module) if type(one).__module__.startswith("torch."))
        # The module may be one of them, and ends when the script holds it no more.
        self._layers = [(ref(one), dict(vars(one))) for one in layers]

    def are_as_before(self) -> bool:
        """Return whether all layers have the settings that they had."""
        for place, (layer, before) in enumerate(self._layers):
            alive = layer()
            if alive is None:
                return False
            now = vars(alive)
            if len(now) == len(before) and all(map(is_, now.values(), before.values())):
                continue
            if dict(_settings_in(now)) != dict(_settings_in(before)):
                return False
            self._layers[place] = layer, dict(now)
        return True


def fields_of_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return the flags, numbers and texts that a script has set as attributes of a tensor."""
    return {name: value for name, value in vars(tensor).items() if isinstance(value, PLAIN)}


def _settings_in(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings among the attributes of a layer."""
    for name, value in attributes.items():
        if name not in MODULE_ATTRIBUTES and isinstance(value, (*PLAIN, tuple)):
            yield name, value


def _flat_elements(values: Any) -> list[Any]:
    """Return the elements of a container that has too many to follow them.

    Raises:
        MirrorError: they have parts of their own, which may change.
    """
    found = [part for pair in items(values) for part in pair] if is_mapping(values) else elements(values)
    if any(base_of(one) or isinstance(one, (np.ndarray, Tensor)) or is_record(one) for one in found):
        raise MirrorError(f"it reads a {type(values).__name__} with {length(values)} parts that may change")
    return found


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
