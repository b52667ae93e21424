"""What was done to a script, and where: for the line at the end, for ``--explain``, and for tests."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from samestep.base.errors import UsageError

_HERE = str(Path(__file__).parent.parent)
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the script, or of a module it imports."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


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
    """Why calls are whole."""
    exceptions: list[str] = field(default_factory=list)
    """What is otherwise than on one worker, because the user wants it so."""
    loading: dict[tuple[str, int], Told] = field(default_factory=dict)
    """What each worker loads, by where batches are read, and by which loader of those read there."""
    printing: set[str] = field(default_factory=set)
    """Split modules that print when they are called."""
    backwards: int = 0
    """Backwards that the script has run."""

    def note_whole(self, what: str, why: str) -> None:
        """Note a call that was not shared out."""
        self.whole[what] += 1
        self.reasons.setdefault(what, why)

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

    def check_shared(self, size: int) -> None:
        """Raise UsageError if nothing was shared out so far: `size` workers have each done all of it."""
        if self.split:
            return
        told = "; ".join(f"{what} stays whole: {why}" for what, why in self.reasons.items())
        told = told or "it calls no module with parameters"
        raise UsageError(
            f"nothing of what this script does could be shared out ({told}): {size} workers would be {size} "
            "silent copies of one run. Run it with -n 1, or with --mode native if it shares out its work."
        )

    def lines(self) -> list[str]:
        """Return what happened, a line for each kind of call."""
        shared = [f"{what}: {count} calls shared out" for what, count in self.split.items()]
        whole = [f"{what}: {count} calls whole ({self.reasons[what]})" for what, count in self.whole.items()]
        loading = dict.fromkeys(f"{site}: {what.text()}" for (site, _), what in self.loading.items())
        return [*shared, *whole, *loading, *self.exceptions]


def is_users(file: str) -> bool:
    """Return whether code is the script's: neither ours nor torch's."""
    return not file.startswith((_HERE, _TORCH, "<"))


def calling_site() -> Site:
    """Return the line of the script that the call under way comes from."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the public way copies the whole stack
    last = frame
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return Site(file, frame.f_lineno)
        last, frame = frame, frame.f_back
    assert last is not None
    return Site(last.f_code.co_filename, last.f_lineno)
