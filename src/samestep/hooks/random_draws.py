"""Captures and restores the state of the process's random generators, and detects draws from them."""

import ctypes
import platform
import random
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.base.record import map_values

_CPU = torch.device("cpu")
_WITHOUT_OWN = ("cpu", "meta")  # types of devices without generators beside those of the CPU


@dataclass(frozen=True, slots=True, eq=False)
class RngState:
    """The state of the process's random generators."""

    cpu: Tensor
    device: tuple[Any, Tensor] | None
    python: Any
    numpy: Any

    @classmethod
    def now(cls, device: torch.device = _CPU) -> "RngState":
        """Return the current state: of the CPU generators, and of a device's."""
        of_device = None
        if device.type not in _WITHOUT_OWN:
            of_device = (device, torch.get_device_module(device).get_rng_state(*_argument(device)))
        return cls(torch.get_rng_state(), of_device, _python_state(), _numpy_state())

    def restore(self) -> None:
        """Set all generators to this state."""
        global _cached  # noqa: PLW0603 - there is one generator for the process
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            device, state = self.device
            module = torch.get_device_module(device)
            # Also an equal state would make cuDNN draw new masks for the dropout of recurrent layers.
            if not torch.equal(module.get_rng_state(*_argument(device)), state):
                module.set_rng_state(state, *_argument(device))
        random.setstate(self.python)
        _set_numpy_state(self.numpy)
        _cached = b"", None  # the restore may have set the second number of a normal pair

    def same(self, state: "RngState") -> bool:
        """Return whether both states are equal."""
        return self.same_of_torch(state) and self.same_on_host(state)

    def same_of_torch(self, state: "RngState") -> bool:
        """Return whether the states of torch's generators are equal."""
        devices = (self.device is None and state.device is None) or (
            self.device is not None
            and state.device is not None
            and torch.equal(self.device[1], state.device[1])
        )
        return torch.equal(self.cpu, state.cpu) and devices

    def same_on_host(self, state: "RngState") -> bool:
        """Return whether the states of Python's and NumPy's generators are equal."""
        is_same = self.numpy is state.numpy or self.key_of_numpy() == state.key_of_numpy()
        return bool((self.python is state.python or self.python == state.python) and is_same)

    def key_of_numpy(self) -> tuple[Any, bytes]:
        """Return the state of NumPy's generator as a value with a hash."""
        if isinstance(self.numpy, dict):
            plain = map_values(self.numpy, lambda value: getattr(value, "tolist", lambda: value)())
            return self.numpy["bit_generator"], repr(plain).encode()
        return self.numpy[2:], self.numpy[1].tobytes()

    def digest_of_changed(self, state: "RngState") -> int:
        """Return a digest of the streams whose state differs in `state`; 0 if none does."""
        pairs = zip(self.streams(), state.streams(), strict=True)
        return zlib.crc32(b"".join(stream for stream, stream_of_state in pairs if stream != stream_of_state))

    def tensors(self) -> list[Tensor]:
        """Return the states of torch's generators, in the order of the fields."""
        return [self.cpu] if self.device is None else [self.cpu, self.device[1]]

    def streams(self) -> list[bytes]:
        """Return the state of each stream."""
        position, words = self.key_of_numpy()
        return [
            *(tensor.numpy().tobytes() for tensor in self.tensors()),
            repr(self.python).encode(),
            repr(position).encode() + words,
        ]


def _argument(device: torch.device) -> list[torch.device]:
    """Return the device as the argument of `get_rng_state`, which takes none for Apple's GPU."""
    return [] if device.type == "mps" else [device]


def seed_generators(seed: int, device: torch.device = _CPU) -> None:
    """Seed the generators of `RngState`; `torch.manual_seed` would also queue a call for every device."""
    torch.default_generator.manual_seed(seed)
    if device.type not in _WITHOUT_OWN:
        torch.get_device_module(device).manual_seed(seed)
    random.seed(seed)
    generator = type(_bit_generator())
    if generator is np.random.MT19937:
        np.random.seed(seed % 2**32)
    else:
        np.random.mtrand.set_bit_generator(generator(seed % 2**32))


def _bit_generator() -> Any:
    """Return the source of numpy's generator: a Mersenne Twister, unless the script has set another one."""
    return np.random.mtrand._rand._bit_generator  # noqa: SLF001 - the process's


def _set_numpy_state(state: Any) -> None:
    """Set the state of numpy's generator, and its source if a script has set another one."""
    name = state["bit_generator"] if isinstance(state, dict) else state[0]
    if type(_bit_generator()).__name__ != name:
        np.random.mtrand.set_bit_generator(getattr(np.random, name)())
    np.random.set_state(state)


_cached: tuple[bytes, Any] = b"", None
"""The last state of numpy's generator, as raw memory and as `np.random.get_state` returned it."""


def _numpy_state() -> Any:
    """Return the state of numpy's generator; `get_state` takes 60 us, so it is called only after a change.

    Each draw changes the raw memory, except one that returns the cached second number of a normal pair.
    """
    global _cached  # noqa: PLW0603 - there is one generator for the process
    twister = _bit_generator()
    if type(twister) is not np.random.MT19937:
        return np.random.get_state(legacy=False)
    memory = ctypes.string_at(twister.ctypes.state_address, _TWISTER_BYTES)
    before, state = _cached
    if memory != before or state[3]:
        state = np.random.get_state(legacy=True)
        _cached = memory, state
    return state


_TWISTER_BYTES = 4 * 625  # size of the raw state: 624 words and a position
_python_cached: tuple[Any, bytes, float | None, Any] = None, b"", None, None
"""The last state of Python's generator: the generator, its raw memory, the second number of a normal pair,
and what `random.getstate` returned."""


def _python_state() -> Any:
    """Return the state of Python's generator; `getstate` makes 625 numbers, so it is called after a change.

    An equal state is the same object, so that a comparison of two need not read the numbers.
    """
    global _python_cached  # noqa: PLW0603 - there is one generator for the process
    generator = getattr(random.getstate, "__self__", None)
    if type(generator) is not random.Random or not _has_known_memory():
        return random.getstate()
    memory, pair = _memory_of(generator), getattr(generator, "gauss_next", None)
    known, before, pair_before, state = _python_cached
    if known is not generator or memory != before or pair != pair_before:
        state = random.getstate()
        if _memory_of(generator) == memory:  # else another thread has drawn meanwhile
            _python_cached = generator, memory, pair, state
    return state


def _memory_of(generator: random.Random) -> bytes:
    """Return the raw state of a generator of Python: behind the head of the object, a position and words."""
    return ctypes.string_at(id(generator) + object.__basicsize__, _TWISTER_BYTES)


@cache
def _has_known_memory() -> bool:
    """Return whether the objects of this Python have their raw state where `_memory_of` reads it."""
    if platform.python_implementation() != "CPython":
        return False
    if random.Random.__basicsize__ < object.__basicsize__ + _TWISTER_BYTES:
        return False
    generator = random.Random(0)
    generator.random()
    *words, position = generator.getstate()[1]
    return _memory_of(generator) == struct.pack("=i624I", position, *words)
