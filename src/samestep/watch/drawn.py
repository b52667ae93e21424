"""Where the process's random generators stand: whether something draws from them, and taking that back."""

import ctypes
import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Where the process's random generators stand."""

    cpu: Tensor
    device: tuple[Any, Tensor] | None
    python: Any
    numpy: Any

    @classmethod
    def now(cls, device: torch.device = _CPU) -> "Drawn":
        """Return where they stand: the CPU's, and those of a device."""
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

    def digest_of_moved(self, other: "Drawn") -> int:
        """Return a digest of the streams that stand elsewhere there; 0 where none does."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        return zlib.crc32(b"".join(one for one, there in pairs if one != there))

    def parts(self) -> list[bytes]:
        """Return the state of each stream."""
        states = [self.cpu] if self.device is None else [self.cpu, self.device[1]]
        return [
            *(one.numpy().tobytes() for one in states),
            repr(self.python).encode(),
            repr(self.numpy[2:]).encode() + self.numpy[1].tobytes(),
        ]


def seed_at(seed: int, device: torch.device = _CPU) -> None:
    """Seed the same generators, without the word to all devices that `torch.manual_seed` queues each time."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


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
