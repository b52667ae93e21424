"""Lets code of an upper folder observe what a class of a lower one does, without replacing its methods."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Observers(Generic[T]):
    """The observers of an operation: each returns the context in which the operation runs.

    >>> from contextlib import nullcontext
    >>> saves = Observers()
    >>> def report(name):
    ...     print("saves", name)
    ...     return nullcontext()
    >>> with saves.subscribed(report), saves.around("weights", nullcontext()):
    ...     print("saving")
    saves weights
    saving
    """

    def __init__(self) -> None:
        # replaced, never changed: another thread may be reading it
        self._observers: tuple[Callable[[T], AbstractContextManager[object]], ...] = ()

    @contextmanager
    def subscribed(self, observer: Callable[[T], AbstractContextManager[object]]) -> Iterator[None]:
        """Call `observer` with the subject of each operation for the duration of a block."""
        self._observers = (*self._observers, observer)
        try:
            yield
        finally:
            self._observers = tuple(known for known in self._observers if known is not observer)

    def around(self, subject: T, inner: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """Return `inner` within the contexts of all observers; `inner` itself without any observer."""
        return self._entered(subject, inner) if self._observers else inner

    @contextmanager
    def _entered(self, subject: T, inner: AbstractContextManager[None]) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self._observers:
                stack.enter_context(observer(subject))
            with inner:
                yield
