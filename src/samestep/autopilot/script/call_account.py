"""Records the split and unsplit calls of a script, for the report at its end, ``--explain`` and tests."""

import os
import re
import sys
import sysconfig
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from os import getpid
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, TextIO
from weakref import ref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from samestep.base.console import write_stderr
from samestep.base.folders import PACKAGE
from samestep.base.units import counted, seconds_text
from samestep.launch.source.modules import has_packages

_LEAST = 3
"""Steps of each way that decide which one is faster: the fewest whose median is not moved by a slow one."""
_KEPT = 5
"""The last steps of each way, of which the median counts: three new ones are the majority."""
_CLEARLY = 0.95
"""The ratio of an unsplit step to a split one, below which training calls are unsplit: a guess at
the noise of steps."""
_LONG_CHECKS_S = 1.0
"""The seconds of all checks from which the report states them."""


@dataclass(slots=True)
class _Step:
    """A step of an optimizer that goes on: its begin, and the calls since."""

    optimizer: ref[Optimizer]
    began: float
    checks: int
    """The number of checks before it."""
    places: set[str] = field(default_factory=set)
    """The modules that were called, and the lines."""
    has_split: bool = False


@dataclass(slots=True)
class _StepTimes:
    """The seconds of steps with the same calls; steps of another training would be no comparison."""

    split_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    unsplit_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    total_s: float = 0.0
    is_noted: bool = False
    """Whether it was reported that their calls are unsplit because the steps are shorter so."""

    def add(self, seconds: float, *, is_split: bool) -> None:
        """Add a step."""
        (self.split_s if is_split else self.unsplit_s).append(seconds)
        self.total_s += seconds

    @property
    def is_faster_unsplit(self) -> bool:
        """Whether a step with unsplit calls is clearly shorter, as far as known."""
        if min(len(self.split_s), len(self.unsplit_s)) < _LEAST:
            return False
        return median(self.unsplit_s) < _CLEARLY * median(self.split_s)


@dataclass(slots=True)
class StepCosts:
    """The steps of a script's optimizers on `size` workers."""

    size: int = 1
    clock: Callable[[], float] = time.perf_counter
    checks_s: float = 0.0
    """The seconds of all checks."""
    _process: int = field(default_factory=getpid)
    _checks: int = 0
    _steps: dict[int, _Step] = field(default_factory=dict)
    """The present step of each optimizer, by its id, since an optimizer may define its own hash."""
    _times: dict[frozenset[str], _StepTimes] = field(default_factory=dict)
    """The times of steps, by their calls."""
    _faster_unsplit: dict[str, _StepTimes] = field(default_factory=dict)
    """The times of those that are clearly shorter with unsplit calls, by each of their calls."""

    def note_call(self, place: str, *, is_split: bool) -> None:
        """Note a call that needs gradients."""
        for step in self._steps.values():
            step.places.add(place)
            step.has_split = step.has_split or is_split

    def note_check(self, seconds: float) -> None:
        """Count a check, or a part of it; the time of its step does not count."""
        self._checks += 1
        self.checks_s += seconds

    def after_step(self, optimizer: Optimizer) -> None:
        """Take the time of a step, at its end."""
        if getpid() != self._process:
            return
        now, step = self.clock(), self._steps.get(id(optimizer))
        if step is None:
            self._steps = {key: begun for key, begun in self._steps.items() if begun.optimizer() is not None}
        self._steps[id(optimizer)] = _Step(ref(optimizer), now, self._checks)
        if step is None or step.optimizer() is not optimizer or step.checks != self._checks:
            return
        if step.places:
            times = self._times.setdefault(frozenset(step.places), _StepTimes())
            times.add(now - step.began, is_split=step.has_split)
            for place in step.places:
                if times.is_faster_unsplit:
                    self._faster_unsplit[place] = times
                else:
                    self._faster_unsplit.pop(place, None)

    def is_faster_unsplit(self, place_of: Callable[[], str]) -> bool:
        """Return whether steps with a call are clearly shorter unsplit; report once that they are used."""
        # First what costs nothing: the place of a call is found in its stack.
        times = self._faster_unsplit.get(place_of()) if self._faster_unsplit else None
        if times is None:
            return False
        if not times.is_noted:
            times.is_noted = True
            write_stderr(
                f"samestep: note: a step takes {_median_text(times.split_s)} with split calls and "
                f"{_median_text(times.unsplit_s)} with unsplit ones, which are therefore used\n"
            )
        return True

    def line(self) -> str | None:
        """Return what a step takes on the workers and on one process; None if no step was measured.

        Of several trainings, it is a step of the longest.
        """
        times = max(self._times.values(), key=lambda times: times.total_s, default=None)
        if times is None:
            return None
        workers = counted(self.size, "worker")
        checks = f"; checks took {seconds_text(self.checks_s)}" if self.checks_s >= _LONG_CHECKS_S else ""
        if len(times.split_s) < min(_LEAST, len(times.unsplit_s)):
            return f"{workers}: {_median_text(times.unsplit_s)} a step, computed by one of them{checks}"
        split = f"{workers}: {_median_text(times.split_s)} a step"
        if len(times.unsplit_s) < _LEAST:
            return split + checks
        unsplit = _median_text(times.unsplit_s)
        if times.is_noted and times.is_faster_unsplit:
            return (
                f"{split} with split calls, {unsplit} with unsplit ones, which were used at the end{checks}"
            )
        advice = ": run it with -n 1, or with larger batches" if times.is_faster_unsplit else ""
        return f"{split}; one process: about {unsplit}{advice}{checks}"


def _median_text(seconds: Iterable[float]) -> str:
    return seconds_text(median(seconds))


_INTERNAL = (f"{PACKAGE}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}", "<")
"""Code of samestep and of torch, and code that has no file."""
_LONG_S = 3.0  # the seconds from which a check is reported
FEWER = "fewer samples than workers"
"""The reason for a call that is unsplit because not every rank would get a sample."""
LONGER_SPLIT = "it takes longer split"
"""The reason for a call that could be split, and is not, to save time."""
IN_PARTS = "; its parts are split"
"""The end of the reason for an unsplit call of which calls of parts were split."""
TOO_SHORT = (
    "most calls of its models are too short to be split, so several workers are at best as fast as one: run "
    "it with -n 1, or with larger batches"
)
"""The advice for a script most of whose calls take longer split."""
_NUMBER = re.compile(r"(?<![\w.:])\d+(?:\.\d+)?(?:e[-+]?\d+)?")
"""A number in a reason, as a size or a difference; not one of a line or a name."""
_PACKAGE_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_INSTALLED = re.compile("|".join(map(re.escape, _PACKAGE_FOLDERS)))
_STANDARD = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})

called_in_parts: ContextVar[tuple[nn.Module, ...]] = ContextVar("samestep_called_in_parts", default=())
"""The modules that this thread calls and whose parts are split in their place, the innermost last."""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of user code, or of a library if no user code is on the stack."""

    file: str
    line: int

    def __str__(self) -> str:
        library = library_of(self.file)
        return f"{Path(self.file).name}:{self.line}" if not library else f"{library} (a library)"


@dataclass(slots=True)
class Account:
    """The calls of a script's models, and whether they were split."""

    size: int = 1
    """The number of workers."""
    steps: StepCosts = field(init=False)
    """The measured times of the training's steps."""
    split: Counter[str] = field(default_factory=Counter)
    """The number of split calls, by the module and the line that calls it."""
    checked: set[str] = field(default_factory=set)
    """The modules and lines whose long check was reported."""
    unsplit: Counter[str] = field(default_factory=Counter)
    """The number of unsplit calls, by the module and the line."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """The number of unsplit calls for each reason, by the module and the line."""
    in_parts: set[tuple[str, str]] = field(default_factory=set)
    """The unsplit calls of which parts were split: the module and the line, and the reason."""
    exceptions: list[str] = field(default_factory=list)
    """Further notes, each once."""
    longer_split: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The last measured seconds of an unsplit and of a split call, of calls that take longer split."""
    backwards: int = 0
    """Backward passes that the script has run."""
    evidence: list[str] = field(default_factory=list)
    """The ways to split that checks have tried, and their first differences."""
    has_called: bool = False
    """Whether the script had called a module before its first backward pass."""
    plain_weights: list[str] = field(default_factory=list)
    """Shapes of tensors that get gradients and are no parameters, if the first backward pass had no call."""

    is_user: Callable[[str], bool] = field(default_factory=lambda: cache(is_user_code))
    """Whether a file is user code of this script: a later one of the same process may have other files."""
    sites: dict[Site, str] = field(default_factory=dict)
    """The text of each line that has called a module."""

    def __post_init__(self) -> None:
        self.steps = StepCosts(self.size)

    def place_of(self, module: nn.Module) -> str:
        """Return the class of a module that is being called, and the line that calls it.

        A part that is split in place of its module has the class of that module, too.
        """
        site = calling_site(self.is_user)
        if site not in self.sites:
            self.sites[site] = str(site)
        whole = "".join(f" in {type(whole).__name__}" for whole in called_in_parts.get()[-1:])
        return f"{type(module).__name__}{whole} at {self.sites[site]}"

    def note_unsplit(self, place: str, why: str) -> None:
        """Record a call that was not split, and why."""
        self.unsplit[place] += 1
        self.counts.setdefault(place, Counter())[why] += 1

    def note_exception(self, text: str) -> None:
        """Record a note, once."""
        if text not in self.exceptions:
            self.exceptions.append(text)

    def note_longer_split(self, place: str, unsplit_s: float, split_s: float) -> None:
        """Record that a call takes longer split than unsplit; report it once, at the first such call."""
        if place not in self.longer_split:
            write_stderr(
                f"samestep: note: a call of {place} takes {seconds_text(split_s)} split and "
                f"{seconds_text(unsplit_s)} unsplit, so such calls are unsplit from now on\n"
            )
        self.longer_split[place] = unsplit_s, split_s

    def explain(self, place: str, evidence: Iterable[object]) -> None:
        """Keep the evidence of a check of a module's calls: a line for each way that was tried."""
        self.evidence += [f"{place}: {line}" for line in evidence]

    def note_check(self, place: str, seconds: float, stream: TextIO) -> None:
        """Report a check that takes long, while it is executed."""
        if seconds >= _LONG_S and place not in self.checked:
            self.checked.add(place)
            write_stderr(
                f"samestep: {place}: checking that its calls can be split, which may take {seconds:.0f} s\n",
                stream,
            )

    def lines(self) -> list[str]:
        """Return the report: a line for each module, line and reason."""
        split = [f"{place}: {counted(count, 'call')} split" for place, count in self.split.items()]
        return [*split, *self._unsplit_lines(), *self.exceptions, *self.evidence, *self._advice()]

    def _unsplit_lines(self) -> Iterator[str]:
        """Yield the lines of unsplit calls: one for reasons that differ in numbers only, as sizes."""
        for place, counts in self.counts.items():
            first: dict[str, str] = {}
            calls: Counter[str] = Counter()
            for why, count in counts.items():
                reason = self._reason(place, why)
                calls[first.setdefault(_NUMBER.sub("", reason), reason)] += count
            for reason, count in calls.items():
                yield f"{place}: {counted(count, 'call')} unsplit ({reason})"

    def _reason(self, place: str, why: str) -> str:
        """Return the reason for unsplit calls, with the measured times of those that take longer split."""
        if (place, why) in self.in_parts:
            return f"{why}{IN_PARTS}"
        if why != LONGER_SPLIT or place not in self.longer_split:
            return why
        unsplit, split = map(seconds_text, self.longer_split[place])
        return f"{why}: {split} instead of {unsplit}"

    def _advice(self) -> list[str]:
        """Return what a step takes; without steps, the advice for a script most of whose calls are short."""
        if (steps := self.steps.line()) is not None:
            return [steps]
        short = sum(counts[LONGER_SPLIT] for counts in self.counts.values())
        return [TOO_SHORT] if 2 * short > self.split.total() + self.unsplit.total() else []


def library_of(file: str) -> str:
    """Return the name of the library that a file belongs to; empty for user code.

    User code is the program that runs, wherever its file is, the modules in its folder, and everything that
    is not installed, such as packages in editable installs. What ``pip install --target`` has installed in a
    folder of `sys.path` is a library.

    >>> library_of("/home/ada/venv/lib/python3.11/site-packages/timm/models/vit.py")
    'timm'
    """
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    path = tuple(entry for entry in sys.path if isinstance(entry, str))  # others Python ignores, too
    return _library_of(file, program, _target_folders(path))


@cache
def _library_of(file: str, program: str | None, targets: tuple[str, ...]) -> str:
    installed = list(_INSTALLED.finditer(file))
    folders = [folder for folder in (*_STANDARD, *targets) if file.startswith(folder)]
    if not (installed or folders) or (program and _is_of_program(file, program, targets)):
        return ""
    start = installed[-1].end() if installed else max(map(len, folders))
    return file[start:].split(os.sep, maxsplit=1)[0].removesuffix(".py")


@cache
def _target_folders(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of a `sys.path` that ``pip install --target`` has filled, with a separator each."""
    return tuple(f"{entry.rstrip(os.sep)}{os.sep}" for entry in path if entry and has_packages(Path(entry)))


def _is_of_program(file: str, program: str, targets: tuple[str, ...]) -> bool:
    """Return whether a file of a library is the program itself, as with ``-m``, or in its package."""
    here = Path(program).absolute()
    folder = f"{here.parent}{os.sep}"
    absolute = str(Path(file).absolute())
    if absolute == str(here):
        return True
    if folder.endswith((*_STANDARD, *_PACKAGE_FOLDERS)) or not absolute.startswith(folder):
        return False
    # The folder of a program may hold the environment that it runs in, or a folder of installed packages.
    if any(target != folder and target.startswith(folder) and file.startswith(target) for target in targets):
        return False
    is_standard = absolute.startswith(_STANDARD) and not folder.startswith(_STANDARD)
    return not is_standard and not _INSTALLED.search(absolute, len(folder) - 1)


def is_internal_code(file: str) -> bool:
    """Return whether a file belongs to torch or samestep, or is a placeholder such as ``<string>``."""
    return file.startswith(_INTERNAL)


def is_user_code(file: str) -> bool:
    """Return whether a file is user code: the script, a module beside it, an editable install."""
    return not is_internal_code(file) and not library_of(file)


def is_users_code(
    code: CodeType, names: Mapping[str, Any], is_user: Callable[[str], bool] = is_user_code
) -> bool:
    """Return whether code with these globals is user code.

    Code that was typed at the prompt, piped to ``python`` or made by ``exec`` has no file: its module
    decides, whose file is missing or ``<stdin>``.
    """
    file = code.co_filename
    if not file.startswith("<"):
        return is_user(file)
    of_module = names.get("__file__")
    if isinstance(of_module, str) and not of_module.startswith("<"):
        return is_user(of_module)
    return names.get("__name__") == "__main__" and not file.startswith("<frozen ")


def calling_site(is_user: Callable[[str], bool] = is_user_code) -> Site:
    """Return the line of user code that has led to this call, or else the nearest line of a library."""
    caller = sys._getframe(1)  # noqa: SLF001 - the public way copies the whole stack
    libraries = [Site(caller.f_code.co_filename, caller.f_lineno)]
    frame: FrameType | None = caller
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users_code(frame.f_code, frame.f_globals, is_user):
            return Site(file, frame.f_lineno)
        if not is_internal_code(file):
            libraries.append(Site(file, frame.f_lineno))
        frame = frame.f_back
    installed = [
        site for site in libraries if _INSTALLED.search(site.file) and not is_internal_code(site.file)
    ]
    return [*installed, *libraries[1:], *libraries][0]
