"""Lets code of an upper folder observe what a class of a lower one does, without replacing its methods."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

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

    def around(self, subject: T, inner: AbstractContextManager[object]) -> AbstractContextManager[object]:
        """Return `inner` within the contexts of all observers; `inner` itself without any observer."""
        for observer in reversed(self._observers):
            inner = _Nested(observer(subject), inner)
        return inner


class _Nested:
    """A context in another one; cheaper than an `ExitStack`, as some collectives take only microseconds."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._inner.__exit__(*error)
        finally:
            self._outer.__exit__(*error)
