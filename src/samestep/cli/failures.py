"""Prints the failure of a command: a line on stderr and, with ``--json``, a document on stdout."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

import typer

from samestep.base import env
from samestep.base.console import write_stderr
from samestep.base.errors import INTERRUPTED, PREEMPTED, Error, one_line
from samestep.base.record import json_line
from samestep.launchers.detect import detect
from samestep.launchers.registry import SAMESTEP

USAGE_ERROR = "usage-error"
_INTERRUPTED = "interrupted"
_OF_WORKERS = {PREEMPTED: "preempted", INTERRUPTED: _INTERRUPTED}
"""Codes of the failures of workers by the exit code of their run; others are ``worker-failed``."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a command ends without its result."""

    code: str  # a name for programs, such as ``usage-error``
    message: str
    exit_code: int

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the failure that an exception is; its code is the name of the exception."""
        if isinstance(error, KeyboardInterrupt):
            return cls(_INTERRUPTED, str(error) or "interrupted.", INTERRUPTED)
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
        return cls(name, str(error), error.exit_code if isinstance(error, Error) else 1)

    def log(self) -> int:
        """Print the message on stderr, and return the exit code.

        That of a worker can have several lines with its traceback. After Ctrl-C a single process prints.
        """
        if self.exit_code == INTERRUPTED:
            if is_reporting():
                write_stderr(f"samestep: {one_line(self.message)}\n")
        else:
            is_traceback = self.code == "worker-failed"
            write_stderr(f"samestep: error: {self.message if is_traceback else one_line(self.message)}\n")
        return self.exit_code

    def document(self) -> str:
        """Return this failure as a line of JSON, in one of the processes of the command; else nothing."""
        return f"{json_line({'error': asdict(self)})}\n" if is_reporting() else ""


def is_reporting() -> bool:
    """Return whether this process prints for all: it is neither a worker of samestep nor a further task."""
    with suppress(Error):  # the launcher's variables can be what is wrong
        detected = detect(env.snapshot())
        return detected.launcher != SAMESTEP.name and detected.place.is_main
    return True


def asks_json(verb: str | None, arguments: Sequence[str]) -> bool:
    """Return whether the words of a command ask for JSON; those of a program that it runs do not."""
    words = list(takewhile(lambda word: word != "--", arguments))
    if verb == "submit":  # the words after the program belong to that
        words = list(takewhile(lambda word: not Path(word).is_file(), words))
    return verb != "run" and "--json" in words


def exit_with(code: int, *, as_json: bool) -> None:
    """End a command whose workers have ended with this exit code; rank 0 prints a document if it is 0.

    Raises:
        Exit: always.
    """
    if code and as_json:
        name = _OF_WORKERS.get(code, "worker-failed")
        message = f"the workers ended with exit code {code}; stderr has the reason."
        print(Failure(name, message, code).document(), end="")
    raise typer.Exit(code)
