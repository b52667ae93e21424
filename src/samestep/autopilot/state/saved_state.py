"""Saves and restores the state that a call of a module may change, so that calls can be compared."""

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samestep.autopilot.state.reachable_state import (
    MODULE_ATTRIBUTES,
    PLAIN,
    cells_of,
    fields_of,
    functions_in,
    globals_of,
    is_record,
    named_by,
    reached,
    scripts_classes,
    shared_fields,
)
from samestep.hooks.tensor_tree import leaves

SideOutput: TypeAlias = tuple[str, str]
"""An attribute to which a module assigns tensors: the name of the submodule, and that of the attribute."""


class SavedState:
    """A copy of the attributes, buffers and globals that calls of a module may change.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = [
            (one, dict(vars(one)), dict(one._buffers), dict(one._parameters))  # noqa: SLF001
            for one in module.modules()
        ]
        found = list(reached(module))
        shared = [*globals_of(module), *(one for _, value in found for one in named_by(value))]
        self._globals = [(names, name, names[name]) for names, name in shared if name in names]
        self._cells = [
            (cell, cell.cell_contents)
            for _, value in found
            for one in functions_in(value)
            for _, cell in cells_of(one)
        ]
        kinds: set[Any] = {type(one) for one in module.modules()}
        owners = [owner for kind in kinds for owner in scripts_classes(kind)]
        plain = [value for _, value in found if isinstance(value, (type, ModuleType))]
        self._classes = [
            (owner, name, value)
            for owner in _distinct([*owners, *plain])
            for name, value in _own_fields(owner).items()
        ]
        self._generators = [
            (one, generator_state(one)) for one in _distinct(value for _, value in found) if is_generator(one)
        ]
        kept = [value for _, _, value in _own_attributes(module)]
        self._containers = [
            (one, copy(one))
            for one in _distinct([*kept, *(value for _, value in found)])
            if isinstance(one, list | dict | set | deque)
        ]
        self._records = [
            (one, fields_of(one))
            for one in _distinct(value for _, value in found)
            if not isinstance(one, PLAIN) and is_record(one)
        ]
        self._arrays = [
            (one, one.copy()) for one in _distinct(value for _, value in found) if isinstance(one, np.ndarray)
        ]
        own = {f"{name} of {place}": value for (place, name), value in found if type(value) is Tensor}
        buffers = {id(buffer) for buffer in module.buffers()}
        self._named = {**dict(module.named_buffers()), **own}
        """Buffers, and other tensors that may be written to in place."""
        self._values = [
            # Batch norm writes to its buffers without a new version.
            (tensor, tensor.detach().clone(), None if id(tensor) in buffers else version_of(tensor))
            for tensor in _distinct(self._named.values())
        ]
        self._saved = {id(tensor): value for tensor, value, _ in self._values}
        self._tensors = {(name, key): _ids(value) for name, key, value in _own_attributes(module)}

    def restore(self) -> None:
        """Restore the saved state."""
        for module, attributes, buffers, parameters in self._attributes:
            refill(vars(module), attributes)
            if isinstance(module, torch.jit.ScriptModule):
                continue  # its tensors stay the same objects: only their values are restored
            refill(module._buffers, buffers)  # noqa: SLF001
            refill(module._parameters, parameters)  # noqa: SLF001
        self._restore_shared()
        for container, contents in self._containers:
            refill(container, contents)
        for array, values in self._arrays:
            if array.flags.writeable:
                array[...] = values
        with torch.no_grad():
            for tensor, value, version in self._values:
                if (version is None or version_of(tensor) != version) and not _equal(tensor, value):
                    # Through `data`, so that the graph of an earlier call does not count it as a change.
                    tensor.data.copy_(value)

    def _restore_shared(self) -> None:
        """Restore globals, variables of closures, class attributes, generators and objects."""
        for names, name, value in self._globals:
            names[name] = value
        for cell, value in self._cells:
            cell.cell_contents = value
        for owner, name, value in self._classes:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
        for generator, state in self._generators:
            set_generator_state(generator, state)
        restore_records(self._records)

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the current values of the tensors that may be written to in place."""
        now = {**self._named, **dict(self._module.named_buffers())}
        return {name: tensor.detach().clone() for name, tensor in now.items()}

    def versions(self) -> list[int | None]:
        """Return the version of each tensor: the number of writes to it."""
        return [version_of(tensor) for tensor in self._named.values()]

    def rewritten(self, since: Sequence[int | None]) -> str | None:
        """Return the name of a tensor that was written to and has the same values as before, if there is one.

        Such a write is not comparable: a running maximum may be exceeded in a later batch only.

        Args:
            since: the earlier result of `versions`.
        """
        for (name, tensor), version in zip(self._named.items(), since, strict=True):
            if version_of(tensor) != version and _equal(tensor, self._saved[id(tensor)]):
                return name
        return None

    def counting_tensors(self) -> list[Tensor]:
        """Return the tensors of one element that has changed by an integer, except batch norm's."""
        return [
            tensor
            for name, tensor in self._named.items()
            if tensor.numel() == 1
            and not name.endswith("num_batches_tracked")
            and is_count(float(self._saved[id(tensor)]), float(tensor))
        ]

    def left(self) -> dict[SideOutput, Any]:
        """Return the attributes that hold new tensors."""
        return {
            (name, key): value
            for name, key, value in _own_attributes(self._module)
            if (found := _ids(value)) and found != self._tensors.get((name, key))
        }


def refill(container: Any, contents: Any) -> None:
    """Replace the contents of a list, a deque, a dict or a set."""
    container.clear()
    container.extend(contents) if isinstance(container, list | deque) else container.update(contents)


def restore_records(records: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """Restore the fields of objects."""
    for record, fields in records:
        for name in getattr(record, "__dict__", {}).keys() - fields.keys():
            object.__delattr__(record, name)
        for name, value in fields.items():
            object.__setattr__(record, name, value)


def _own_fields(owner: Any) -> dict[str, Any]:
    """Return the attributes of a class or a Python module, except functions and classes."""
    if isinstance(owner, type) and issubclass(owner, nn.Module):
        own = vars(owner).items()
        return {name: one for name, one in own if not name.startswith("__") and not callable(one)}
    return shared_fields(owner)


def is_generator(value: Any) -> bool:
    """Return whether a value is a random generator object."""
    return isinstance(value, (torch.Generator, random.Random, np.random.Generator, np.random.RandomState))


def generator_state(generator: Any) -> Any:
    """Return the state of a random generator."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
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


def is_count(before: float, after: float) -> bool:
    """Return whether a number has changed by an integer."""
    change = after - before
    return math.isfinite(change) and round(change) != 0 and abs(change - round(change)) < 1e-9


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.detach(), other)


def _distinct(values: Any) -> Iterator[Any]:
    """Yield each object once."""
    seen: set[int] = set()
    for value in values:
        if id(value) not in seen:
            seen.add(id(value))
            yield value


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield the attributes of a module and its submodules that `nn.Module` does not define."""
    for name, one in module.named_modules():
        yield from ((name, key, value) for key, value in vars(one).items() if key not in MODULE_ATTRIBUTES)


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(id(tensor) for _, tensor in leaves(value))
