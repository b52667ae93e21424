"""Suppresses the prints, logs and warnings of calls that are computed for a comparison."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from typing import Any

from samestep.hooks import declarations
from samestep.hooks.registry import attached, wrapping


class Printed:
    """A stream that discards its input, and records whether there was any."""

    def __init__(self) -> None:
        self.any = False

    def write(self, text: str) -> int:
        """Discard a text, and record that there was one."""
        self.any = True
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text is kept."""


_current: ContextVar[Printed | None] = ContextVar("samestep_quiet", default=None)


@contextmanager
def quiet() -> Iterator[Printed]:
    """Suppress what the calling thread prints, logs and warns; yield whether it has printed or logged."""
    printed = Printed()
    stream: Any = printed
    token = _current.set(printed)
    try:
        with (
            attached(declarations.LOGGED, wrapping(_log)),
            redirect_stdout(stream),
            redirect_stderr(stream),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield printed
    finally:
        _current.reset(token)


def _log(original: Callable[..., None], logger: logging.Logger, record: logging.LogRecord) -> None:
    printed = _current.get()
    if printed is None:
        original(logger, record)
    else:
        printed.any = True
