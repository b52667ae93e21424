"""What was done to a script, and where: for the line at the end, for ``--explain``, and for tests."""

import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from samestep.autopilot.failed_calls import FailedCalls
from samestep.base.errors import UsageError

_PASSED_BY = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}", "<")
"""Code of samestep and of torch, and code that has no file."""
NO_CALLS = "it calls no module with parameters"
_SHARED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_INSTALLED = re.compile("|".join(map(re.escape, _SHARED)))
_STANDARD = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the script, or of a module of the user's that it imports.

    Where no code of the user's is on the stack, the file is a library's.
    """

    file: str
    line: int

    def __str__(self) -> str:
        library = library_of(self.file)
        return f"{Path(self.file).name}:{self.line}" if not library else f"{library} (a library)"


class Told(Protocol):
    """Something whose last state is told at the end."""

    def text(self) -> str:
        """Return it in words."""


@dataclass(slots=True)
class Account:
    """What happened to the calls of a script's models."""

    split: Counter[str] = field(default_factory=Counter)
    """Calls that were shared out, by what was called and where."""
    whole: Counter[str] = field(default_factory=Counter)
    """Calls that every rank computed in full."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the first of them was; the others are in `counts`."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """How many unsplit calls there were for each reason, by what was called and where."""
    exceptions: list[str] = field(default_factory=list)
    """What is otherwise than on one worker, because the user wants it so."""
    loading: dict[tuple[str, int], Told] = field(default_factory=dict)
    """What each worker loads, by where batches are read, and by which loader of those read there."""
    printing: set[str] = field(default_factory=set)
    """Split modules that print when they are called."""
    backwards: int = 0
    """Backward passes that the script has run."""
    failed: FailedCalls = field(default_factory=FailedCalls)
    """Split calls that have raised."""
    plain_weights: list[str] = field(default_factory=list)
    """Shapes of the tensors with gradients that are no parameters, in a first backward pass without calls."""

    def note_whole(self, what: str, why: str) -> None:
        """Record a call that every rank computed in full, and why."""
        self.whole[what] += 1
        self.reasons.setdefault(what, why)
        self.counts.setdefault(what, Counter())[why] += 1

    def note_exception(self, text: str) -> None:
        """Note, once, what is otherwise than on one worker."""
        if text not in self.exceptions:
            self.exceptions.append(text)

    def note_prints(self, what: str, *, main: bool) -> None:
        """Report, once and as soon as it happens, that a split module prints: it prints of a slice.

        Args:
            what: the module and where it is called.
            main: whether this is the rank that prints.
        """
        if what not in self.printing:
            self.printing.add(what)
            if main:
                sys.stderr.write(
                    f"samestep: note: {what} prints in forward; in a split call it prints for worker 0's "
                    "slice of the batch\n"
                )

    def check_shared(self, size: int, advice: Callable[["Account"], str] = lambda _: NO_CALLS) -> None:
        """Check that anything was split across ranks so far.

        Args:
            size: the ranks.
            advice: says what a script does that calls no module.

        Raises:
            UsageError: nothing was; each rank has computed all of it.
        """
        if self.split:
            return
        found = [f"{what} is unsplit: {why}" for what, counts in self.counts.items() for why in counts]
        raise UsageError(
            f"nothing of what this script does could be shared out ({'; '.join(found) or advice(self)}). "
            f"Each of {size} workers would compute all of it: {size} silent copies of one run. "
            "Run it with -n 1, or with --mode native if it splits its work itself."
        )

    def lines(self) -> list[str]:
        """Return what happened, a line for each kind of call."""
        shared = [f"{what}: {count} calls shared out" for what, count in self.split.items()]
        whole = [
            f"{what}: {count} calls whole ({why})"
            for what, counts in self.counts.items()
            for why, count in counts.items()
        ]
        loading = dict.fromkeys(f"{site}: {what.text()}" for (site, _), what in self.loading.items())
        return [*shared, *whole, *loading, *self.exceptions]


def library_of(file: str) -> str:
    """Return the name of the library that a file belongs to; empty for the user's code.

    The user's are the program that runs, wherever it is, the modules beside it, and all that is not
    installed, such as packages in editable installs.

    >>> library_of("/home/ada/venv/lib/python3.11/site-packages/timm/models/vit.py")
    'timm'
    """
    installed = list(_INSTALLED.finditer(file))
    if (not installed and not file.startswith(_STANDARD)) or _is_of_program(file):
        return ""
    start = installed[-1].end() if installed else max(len(one) for one in _STANDARD if file.startswith(one))
    return file[start:].split(os.sep, maxsplit=1)[0].removesuffix(".py")


def _is_of_program(file: str) -> bool:
    """Return whether a file of a library is the program itself, as with ``-m``, or in the package of it."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if program is None:
        return False
    here = Path(program).absolute()
    folder = f"{here.parent}{os.sep}"
    absolute = str(Path(file).absolute())
    return absolute == str(here) or (
        not folder.endswith((*_STANDARD, *_SHARED)) and absolute.startswith(folder)
    )


def is_passed_by(file: str) -> bool:
    """Return whether code is torch's or samestep's, or has no file."""
    return file.startswith(_PASSED_BY)


def is_users(file: str) -> bool:
    """Return whether code is the user's: the script, a module beside it, an editable install."""
    return not is_passed_by(file) and not library_of(file)


def calling_site() -> Site:
    """Return the line of the user's code that the current call comes from, maybe through a library.

    Where there is none, as in a thread that a library starts, the nearest line of a library.
    """
    caller = sys._getframe(1)  # noqa: SLF001 - the public way copies the whole stack
    libraries = [Site(caller.f_code.co_filename, caller.f_lineno)]
    frame: FrameType | None = caller
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return Site(file, frame.f_lineno)
        if not is_passed_by(file):
            libraries.append(Site(file, frame.f_lineno))
        frame = frame.f_back
    installed = [one for one in libraries if _INSTALLED.search(one.file) and not is_passed_by(one.file)]
    return [*installed, *libraries[1:], *libraries][0]
