"""A stand-in for the random generator of a CUDA device."""

import pytest
import torch


class DeviceGenerator:
    """The functions of ``torch.cuda`` that read, set and seed a generator, whose state is a counter.

    `sets` is how often a state was set.
    """

    def __init__(self) -> None:
        self._state, self.sets = torch.zeros(16, dtype=torch.uint8), 0

    def get_rng_state(self, _=None):
        """Return the state."""
        return self._state.clone()

    def set_rng_state(self, state, _=None):
        """Set the state."""
        self._state, self.sets = state.clone(), self.sets + 1

    def manual_seed(self, seed):
        """Set the state by a seed."""
        self._state = torch.tensor([*seed.to_bytes(8, "little"), *[0] * 8], dtype=torch.uint8)

    def draw(self):
        """Return the next number, from 0 to 255."""
        self._state[8] += 1
        return int(self._state.sum() % 256)


def install(patch: pytest.MonkeyPatch) -> DeviceGenerator:
    """Let `torch.get_device_module` return a new stand-in."""
    generator = DeviceGenerator()
    patch.setattr(torch, "get_device_module", lambda _: generator)
    return generator
