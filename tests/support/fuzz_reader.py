"""Defines readers that are tested with wrong content; `support.fuzz_readers` lists them."""

import contextlib
import io
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from support.fuzz_mutations import mutated

ODD_FILES = ("fifo", "zero", "full", "folder", "socket", "dangling", "loop", "sparse", "unreadable")
"""What may be where a file is expected."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A format that is read, and its wrong cases.

    Args:
        name: of the reader.
        read: reads what `place` has prepared in a folder; returns nothing, or a line and an exit code.
        valid: makes right contents, bytes each.
        file: where content goes in the folder; empty for a reader that takes the content itself.
        beside: writes the other files that the folder needs.
        wrong: makes wrong content otherwise than by faults in the bytes; for some of the cases.
        begin: what a process does once, before its memory is limited.
    """

    name: str
    read: Callable[..., Any]
    valid: Callable[[], Sequence[bytes]]
    file: str = ""
    beside: Callable[[Path], None] | None = None
    wrong: Callable[[Random], bytes] | None = None
    begin: Callable[[], None] = lambda: None

    def case(self, draw):
        """Return wrong content, or for some cases of a file the name of an odd thing in its place."""
        if self.file and draw.random() < 0.05:
            return b"odd:" + draw.choice(ODD_FILES).encode()
        if self.wrong is not None and draw.random() < 0.7:
            return self.wrong(draw)
        valid = self.valid()
        if draw.random() < 0.1:
            return draw.choice(valid)  # some are whole, and wrong all the same
        return mutated(draw, draw.choice(valid), others=valid)

    def prepared(self, content, folder):
        """Write `content` to its place in `folder`; return a function that reads it."""
        if not self.file:
            return partial(self.read, content)
        if self.beside is not None:
            self.beside(folder)
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if content.startswith(b"odd:"):
            put_odd(path, content[4:].decode())
        else:
            path.write_bytes(content)
        return partial(self.read, folder)


def put_odd(path, kind):
    """Create something other than a file where a file is expected.

    Args:
        path: where.
        kind: one of `ODD_FILES`.
    """
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 36)
    elif kind == "unreadable":
        path.write_bytes(b"x")
        path.chmod(0)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):  # a long path
            one.bind(str(path))
    else:
        targets = {"zero": "/dev/zero", "full": "/dev/full", "dangling": "nowhere", "loop": path.name}
        path.symlink_to(targets[kind])


def command(*arguments):
    """Run samestep with `arguments`; return what it printed on stderr, and the exit code, if it failed."""
    from samestep.cli.main import run_command

    out, err = io.TextIOWrapper(io.BytesIO(), errors="surrogateescape"), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command([str(one) for one in arguments])
    except SystemExit as ended:
        code = ended.code or 0
    if code == 0:
        return None
    lines = err.getvalue().splitlines()
    errors = [line for line in lines if line.startswith("samestep: error:")]
    if code != 2:
        return err.getvalue(), code
    return (errors[0] if len(lines) == len(errors) == 1 else f"Traceback, or lines: {lines}"), code
