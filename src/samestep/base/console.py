"""Writes samestep's messages and progress bars to stderr, and verdicts to stdout, in color on a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from typing import TextIO

from samestep.base import env

GOOD, DOUBTFUL, BAD = "green", "yellow", "bold red"
"""The styles of verdicts on a terminal."""

_STREAMS = ("stdin", "stdout", "stderr")  # by descriptor
_QUIET = {"SAMESTEP_QUIET": "1", "SAMESTEP_BANNER": "0"}


def open_standard_streams() -> None:
    """Open on /dev/null those of stdin, stdout and stderr that are closed.

    Otherwise the next pipe would get one of their numbers, workers would print into it, and `print` would
    write to stdout what is for stderr.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):  # the lowest free number
        pass
    os.close(fd)
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def log(text: str) -> None:
    """Print a message on stderr, with samestep's name before it."""
    print(f"samestep: {text}", file=sys.stderr, flush=True)


def inform(text: str) -> None:
    """Print a message about the normal course of a command, unless ``--quiet`` was given."""
    if not is_quiet():
        log(text)


class StatusLine:
    """A line at the end of a terminal's output that is rewritten; there is none if stderr is no terminal."""

    def __init__(self) -> None:
        self._is_used = sys.stderr.isatty() and not is_quiet()
        self._shown = ""

    def show(self, text: str) -> None:
        """Show `text` in place of the last one; empty to clear the line."""
        text = text[: get_terminal_size().columns - 1]  # a longer one could not be cleared
        if self._is_used and text != self._shown:
            write_stderr(f"\r{text}\x1b[K")
            self._shown = text


def discard_output(stream: TextIO | None = None) -> None:
    """Discard what could not be printed, on stdout unless another `stream` is given, and all that follows.

    Otherwise the interpreter would print it again at its end, and fail.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, (stream or sys.stdout).fileno())
    os.close(nowhere)


def print_verdict(*parts: str | tuple[str, str]) -> None:
    """Print a line of a result on stdout.

    A part with a style has it on a terminal, unless NO_COLOR is set.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal and not console.no_color:
        console.print(Text.assemble(*parts), soft_wrap=True)
    else:
        print(*(part if isinstance(part, str) else part[0] for part in parts), sep="")
    sys.stdout.flush()


def be_quiet() -> None:
    """Print only results, warnings and errors, in this process and in those that it starts."""
    env.export(_QUIET)


def is_quiet() -> bool:
    """Return whether ``--quiet`` was given."""
    return env.snapshot().get("SAMESTEP_QUIET") == "1"


def write_stderr(text: str, stream: TextIO | None = None) -> None:
    """Write to stderr; nothing where the program has closed it, or put a broken stream in its place.

    Another `stream` is what stderr was before it was redirected.
    """
    with suppress(Exception):
        stream = stream or sys.stderr
        stream.write(text)
        stream.flush()


@contextmanager
def progress_bar(total: int | None, *, shown: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar with the time left, if stderr is a terminal.

    It yields a function to call before each piece of work, with its name, and with the number of all pieces
    once it is known. `total` is None if the number of pieces is not known yet.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = shown and console.is_terminal and not is_quiet()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=total)
        completed = -1

        def begin(piece: str, total: int | None = None) -> None:
            nonlocal completed
            completed += 1
            bar.update(task, completed=completed, description=piece, total=total)

        yield begin
