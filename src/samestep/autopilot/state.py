"""What a call of a module may change, so that it can be tried and taken back."""

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from samestep.watch.tree import leaves

Side: TypeAlias = tuple[str, str]
"""An attribute in which a module leaves tensors: the module's name within the one called, and its own."""


class Changeable:
    """The attributes and buffers of a module and all within it, as they were.

    Args:
        module: whose.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = [
            (one, dict(vars(one)), dict(one._buffers), dict(one._parameters))  # noqa: SLF001
            for one in module.modules()
        ]
        self._values = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        kept = [value for _, _, value in _own_attributes(module)]
        self._containers = [(one, copy(one)) for one in kept if isinstance(one, list | dict | set)]
        self._tensors = {(name, key): _ids(value) for name, key, value in _own_attributes(module)}

    def restore(self) -> None:
        """Make all of it as it was."""
        for module, attributes, buffers, parameters in self._attributes:
            _refill(vars(module), attributes)
            if isinstance(module, torch.jit.ScriptModule):
                continue  # its tensors stay the same objects: there is nothing to put back but their values
            _refill(module._buffers, buffers)  # noqa: SLF001
            _refill(module._parameters, parameters)  # noqa: SLF001
        for container, contents in self._containers:
            refill(container, contents)
        with torch.no_grad():
            for buffer, value in self._values:
                buffer.copy_(value)

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the buffers as they are now."""
        return {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}

    def left(self) -> dict[Side, Any]:
        """Return the attributes in which there are tensors that were not there before."""
        return {
            (name, key): value
            for name, key, value in _own_attributes(self._module)
            if (found := _ids(value)) and found != self._tensors.get((name, key))
        }


def refill(container: Any, contents: Any) -> None:
    """Give a list, a dict or a set other contents."""
    container.clear()
    container.extend(contents) if isinstance(container, list) else container.update(contents)


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield what the classes of a module and of those in it have added to torch's own attributes."""
    for name, one in module.named_modules():
        yield from ((name, key, value) for key, value in vars(one).items() if key not in _TORCHS)


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(id(tensor) for _, tensor in leaves(value))


def _refill(one: dict[str, Any], other: Mapping[str, Any]) -> None:
    one.clear()
    one.update(other)


_TORCHS = frozenset(vars(nn.Module()))
