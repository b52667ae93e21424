"""Counts the bytes of gradients that this rank sends in a step."""

from collections.abc import Iterable

from samestep.observe.clock.model_gradients import DdpInfo


class GradientBytes:
    """The bytes of gradients of the current step, as large as they are sent.

    DDP sends the gradients of a model in the first backward after it was called, once however often it was
    called; a `GradientSynchronizer` reports its own.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._is_known = True
        self._called: set[DdpInfo] = set()
        """Models whose gradients the next backward synchronizes."""

    def called(self, ddps: Iterable[DdpInfo]) -> None:
        """Record a training call of these models."""
        self._called.update(ddps)

    def began_backward(self) -> None:
        """Record that a backward begins."""
        for ddp in self._called:
            self.add(ddp.gradient_bytes)
        self._called.clear()

    def add(self, size: int | None) -> None:
        """Record that this many bytes were sent; None if unknown."""
        self._is_known &= size is not None
        self._bytes = (self._bytes or 0) + (size or 0)

    def take(self) -> int | None:
        """Return the bytes of the step that ends; None without gradients, or if unknown."""
        found, is_known = self._bytes, self._is_known
        self._bytes, self._is_known = None, True
        return found if is_known else None
