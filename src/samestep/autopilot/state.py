"""What a call of a module may change, so that it can be tried and taken back."""

import ctypes
import random
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from samestep.watch.tree import leaves

Side: TypeAlias = tuple[str, str]
"""An attribute in which a module leaves tensors: the module's name within the one called, and its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Where the process's random generators stand."""

    cpu: Tensor
    device: tuple[Any, Tensor] | None
    python: Any
    numpy: Any

    @classmethod
    def now(cls, device: torch.device) -> "Drawn":
        """Return where they stand."""
        own = None
        if device.type != "cpu":
            own = (device, torch.get_device_module(device).get_rng_state(device))
        return cls(torch.get_rng_state(), own, random.getstate(), _numpys())

    def restore(self) -> None:
        """Put them back there."""
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            where, state = self.device
            torch.get_device_module(where).set_rng_state(state, where)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        _forget()

    def same(self, other: "Drawn") -> bool:
        """Return whether both are the same place in the same streams."""
        mine, theirs = self.numpy, other.numpy
        devices = (self.device is None and other.device is None) or (
            self.device is not None
            and other.device is not None
            and torch.equal(self.device[1], other.device[1])
        )
        return (
            torch.equal(self.cpu, other.cpu)
            and devices
            and self.python == other.python
            and (mine is theirs or (mine[2:] == theirs[2:] and bool((mine[1] == theirs[1]).all())))
        )


_told: tuple[bytes, Any] = b"", None
"""Where numpy's generator stood when it was last asked, in its own form and as it told."""


def _numpys() -> Any:
    """Return where numpy's generator stands, which it takes 60 us to tell: only if it has moved.

    Each draw moves it, but for a normal number that an earlier one has left over.
    """
    global _told  # noqa: PLW0603 - there is one generator for the process
    twister = np.random.mtrand._rand._bit_generator  # noqa: SLF001 - the process's
    stands = ctypes.string_at(twister.ctypes.state_address, _TWISTER_BYTES)
    before, state = _told
    if stands != before or state[3]:
        state = np.random.get_state(legacy=True)
        _told = stands, state
    return state


def _forget() -> None:
    """Ask again, since a number left over may have been put back."""
    global _told  # noqa: PLW0603
    _told = b"", None


_TWISTER_BYTES = 4 * 625
"""Of the state in memory: 624 words, and the place among them."""


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
