"""Checks that compared runs belong to one training, and finds the settings in which they differ."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.studies.scaling.analysis.point_text import counted
from samestep.studies.scaling.analysis.rank_files import Run

_VALUE = re.compile(r"[^-]|-[\d.]|-$")  # beginning of an argument that is not a flag

_TRAINED = ("--data", "--model", "--fast", "--subset")
"""Flags of a recipe that determine which training it is."""

_IGNORED = frozenset(
    {
        *("-n", "--out", "--resume", "--clock", "--clock-steps", "--clock-warm-up", "--threads"),
        *("--recipe", "--label", "--seed", "--epochs", "--data-dir"),
        *("--evaluate-every", "--checkpoint-minutes", "--keep", "--stop-signal", "--per-rank"),
    }
)
"""Flags of a recipe that do not change a step, or are reported elsewhere."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The program and arguments of a run."""

    workers: int  # number of workers
    program: str  # the script's name, or ``recipe`` and its name; empty if unknown
    settings: Mapping[str, str]  # values by flag, or by index for positional arguments
    # the ``script``'s arguments, the flags of a ``recipe``, or the settings in a run's ``folder``
    source: str


def invocation_of(run: Run) -> Invocation:
    """Return the invocation of `run`, from the header of its first rank."""
    header = run.ranks[0].header
    argv = [str(word) for word in header.get("argv") or []]
    if header.get("kind") != "recipe":
        path = Path(argv[0]) if argv else Path()
        name = path.parent.name if path.name == "__main__.py" else path.name
        return Invocation(run.workers, name, dict(_arguments(argv[1:])), "script")
    config = None if argv else header.get("config")  # if a clock has both, the arguments count
    if isinstance(config, Mapping):
        settings = {f"--{name.replace('_', '-')}": str(value) for name, value in config.items()}
        name = settings.get("--recipe", "")
    else:
        settings = dict(_arguments(argv[argv.index("train") + 1 :] if "train" in argv else []))
        name = settings.pop("1", "")
    settings = {flag: value for flag, value in settings.items() if flag not in _IGNORED}
    source = "recipe" if config is None else "folder"
    return Invocation(run.workers, f"recipe {name}" if name else "", settings, source)


def check_same_training(paths: Sequence[Path], runs: Sequence[Run]) -> None:
    """Check that the runs in these paths belong to one training.

    Raises:
        UsageError: two runs belong to different trainings; names them.
    """
    first, *others = map(invocation_of, runs)
    for path, other in zip(paths[1:], others, strict=True):
        apart = _trained_apart(first, other)
        if apart:
            raise UsageError(
                f"{paths[0]} is a run of {apart[0]}, {path} of {apart[1]}: give runs of one training. To "
                "compare different programs, write their workers and seconds into a table."
            )


def differences(runs: Sequence[Run]) -> str:
    """Return the settings that differ between runs, and are not in proportion to the workers."""
    return "; ".join(f"{name}: {values}" for name, values in _differing(runs).items() if values)


def target(runs: Sequence[Run]) -> str:
    """Return the program and its arguments, with ``...`` for values that differ between runs."""
    first = invocation_of(runs[0])
    words, apart = [first.program or "a training"], _differing(runs)
    if first.source != "folder":
        for name, value in first.settings.items():
            shown = "..." if name in apart else value
            words += [name, shown] if name.startswith("-") else [shown]
    return " ".join(filter(None, words))


def _trained_apart(one: Invocation, other: Invocation) -> tuple[str, str] | None:
    """Return the trainings of two runs in words if they certainly differ."""
    if one.program != other.program and one.program and other.program:
        return one.program, other.program
    if one.source != other.source or one.source == "script":
        return None
    for name in _TRAINED:
        values = one.settings.get(name, ""), other.settings.get(name, "")
        if values[0] != values[1]:
            before, after = (f"{one.program} {name} {value}" if value else one.program for value in values)
            return before, after
    return None


def _differing(runs: Sequence[Run]) -> dict[str, str]:
    """Return the values of each setting that differs; empty if they are in proportion to the workers."""
    every = [invocation_of(run) for run in runs]
    every = [one for one in every if one.source == every[0].source and (one.program or one.settings)]
    names = dict.fromkeys(name for one in every for name in one.settings)
    found = {}
    for name in names:
        values = dict.fromkeys((one.workers, one.settings.get(name)) for one in every)
        if len({value for _, value in values}) > 1:
            texts = (
                f"{'none' if value is None else value or 'given'} at {counted(workers)}"
                for workers, value in values
            )
            found[name] = "" if _is_proportional(values) else ", ".join(texts)
    return found


def _is_proportional(values: Mapping[tuple[int, str | None], None]) -> bool:
    """Return whether numbers are proportional to the workers, directly or inversely."""
    try:
        numbers = [(workers, float(value or "")) for workers, value in values]
    except ValueError:
        return False
    totals = {round(workers * value, 9) for workers, value in numbers}
    shares = {round(value / workers, 9) for workers, value in numbers}
    return len(totals) == 1 or len(shares) == 1


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags with their values (``--lr=1`` as ``--lr 1``), and positional arguments by index."""
    place, rest = 0, list(words)
    while rest:
        word = rest.pop(0)
        if _VALUE.match(word):
            place += 1
            yield str(place), word
            continue
        name, is_joined, value = word.partition("=")
        if not is_joined and rest and _VALUE.match(rest[0]):
            value = rest.pop(0)
        yield name, value
