"""Excludes other threads of a script from the weights of a module that an equivalence check has disturbed.

A thread may write a checkpoint, or evaluate a copy of the loop's model, while the main thread calls it in a
new mode for the first time.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from samestep.hooks import module_parts

_changed = threading.Condition()
os.register_at_fork(
    before=_changed.acquire, after_in_parent=_changed.release, after_in_child=_changed.release
)
_disturbed: list[tuple[int, nn.Module]] = []
"""The modules whose weights are disturbed now, each with the thread that has disturbed them."""
_read: list[tuple[int, nn.Module]] = []
"""The modules whose weights are read now, each with the thread that reads them."""


@contextmanager
def disturbing(module: nn.Module) -> Iterator[None]:
    """Disturb the weights of a module in a block, which waits until no other thread reads them."""
    with _entered(_disturbed, module, lambda: _by_others(_read, module)):
        yield


@contextmanager
def reading(module: nn.Module) -> Iterator[None]:
    """Read the weights of a module in a block, which waits until no other thread disturbs any of them."""
    with _entered(_read, module, lambda: _by_others(_disturbed, module)):
        yield


@contextmanager
def calling(module: nn.Module) -> Iterator[None]:
    """Call a module in another thread than the main one; wait until its weights are not disturbed.

    A part of a disturbed module is called at once: the forward that a check runs may call it in a thread.
    """
    here = threading.get_ident()
    with _entered(_read, module, lambda: any(by != here and one is module for by, one in _disturbed)):
        yield


@contextmanager
def _entered(
    entries: list[tuple[int, nn.Module]], module: nn.Module, must_wait: Callable[[], bool]
) -> Iterator[None]:
    entry = threading.get_ident(), module
    with _changed:
        _changed.wait_for(lambda: not must_wait())
        entries.append(entry)
    try:
        yield
    finally:
        with _changed:
            entries.remove(entry)
            _changed.notify_all()


def _by_others(entries: list[tuple[int, nn.Module]], module: nn.Module) -> bool:
    """Return whether another thread is in a block for a module that shares weights with this one."""
    here = threading.get_ident()
    return any(by != here and (_is_part(module, one) or _is_part(one, module)) for by, one in entries)


def _is_part(module: nn.Module, whole: nn.Module) -> bool:
    return any(one is module for one in module_parts.modules(whole))
