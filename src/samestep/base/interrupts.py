"""Lets Ctrl-C end this process during imports, on every operating system."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end this process without Python for a block that has nothing to undo.

    For imports: Python can lose a KeyboardInterrupt in the callbacks of its import locks, and raises none
    while a library is loaded, which takes many seconds on a busy machine.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
