"""Whether runs that somebody puts beside each other are of one training: what they ran, and as what."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.scaling.rank_files import Run
from samestep.scaling.words import counted

_VALUE = re.compile(r"[^-]|-[\d.]|-$")
"""How a word begins that is no flag."""

_TRAINED = ("--data", "--model", "--fast", "--subset")
"""Of a recipe: with another of these it is another training."""

_APART = frozenset(
    {
        *("-n", "--out", "--resume", "--clock", "--clock-steps", "--clock-warm-up", "--threads"),
        *("--recipe", "--label", "--seed", "--epochs", "--data-dir"),
        *("--evaluate-every", "--checkpoint-minutes", "--keep", "--stop-signal", "--per-rank"),
    }
)
"""Of a recipe: what makes no other step, and what is told elsewhere."""


@dataclass(frozen=True, slots=True)
class Called:
    """How a run was called.

    Args:
        workers: how many.
        program: the script's name, or ``recipe`` and its name; empty where nobody told.
        settings: what it was called with, by flag, or by its place where it belongs to none.
        told_by: the ``script``'s arguments, the flags of a ``recipe``, or the settings in a run's ``folder``.
    """

    workers: int
    program: str
    settings: Mapping[str, str]
    told_by: str


def called(run: Run) -> Called:
    """Return how `run` was called, as its first rank tells."""
    header = run.ranks[0].header
    argv = [str(word) for word in header.get("argv") or []]
    if header.get("kind") != "recipe":
        path = Path(argv[0]) if argv else Path()
        name = path.parent.name if path.name == "__main__.py" else path.name
        return Called(run.workers, name, dict(_arguments(argv[1:])), "script")
    told = None if argv else header.get("config")  # a clock has both: how it was called is what differs
    if isinstance(told, Mapping):
        settings = {f"--{name.replace('_', '-')}": str(value) for name, value in told.items()}
        name = settings.get("--recipe", "")
    else:
        settings = dict(_arguments(argv[argv.index("train") + 1 :] if "train" in argv else []))
        name = settings.pop("1", "")
    settings = {flag: value for flag, value in settings.items() if flag not in _APART}
    by = "recipe" if told is None else "folder"
    return Called(run.workers, f"recipe {name}" if name else "", settings, by)


def refuse_several(paths: Sequence[Path], runs: Sequence[Run]) -> None:
    """Refuse runs of several trainings.

    Args:
        paths: where the runs are.
        runs: of each of them.

    Raises:
        UsageError: two are not of the same; says which.
    """
    first, *others = map(called, runs)
    for path, other in zip(paths[1:], others, strict=True):
        apart = _trained_apart(first, other)
        if apart:
            raise UsageError(
                f"{paths[0]} is of {apart[0]} and {path} of {apart[1]}: a speedup is that of one training. "
                "Give runs of one; of programs that do the same work, write workers and seconds into a table."
            )


def differences(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what `runs` were called with that differs, and does not follow the number of their workers."""
    found = [f"{name}: {values}" for name, values in _differing(runs).items() if values]
    if found:
        yield f"The runs were not called alike, and are compared as they were: {'; '.join(found)}."


def target(runs: Sequence[Run]) -> str:
    """Return what ran, in words; a value that is not the same in all runs is left open."""
    first = called(runs[0])
    words, apart = [first.program or "a training"], _differing(runs)
    if first.told_by != "folder":
        for name, value in first.settings.items():
            shown = "..." if name in apart else value
            words += [name, shown] if name.startswith("-") else [shown]
    return " ".join(filter(None, words))


def _trained_apart(one: Called, other: Called) -> tuple[str, str] | None:
    """Return what two runs trained, in words, where it is surely not the same."""
    if one.program != other.program and one.program and other.program:
        return one.program, other.program
    if one.told_by != other.told_by or one.told_by == "script":
        return None
    for name in _TRAINED:
        values = one.settings.get(name, ""), other.settings.get(name, "")
        if values[0] != values[1]:
            before, after = (f"{one.program} {name} {value}" if value else one.program for value in values)
            return before, after
    return None


def _differing(runs: Sequence[Run]) -> dict[str, str]:
    """Return the values of what is not the same in all runs; empty for what follows the workers."""
    every = [called(run) for run in runs]
    every = [one for one in every if one.told_by == every[0].told_by and (one.program or one.settings)]
    names = dict.fromkeys(name for one in every for name in one.settings)
    found = {}
    for name in names:
        values = dict.fromkeys((one.workers, one.settings.get(name)) for one in every)
        if len({value for _, value in values}) > 1:
            told = (f"{_in_words(value)} at {counted(workers)}" for workers, value in values)
            found[name] = "" if _follows(values) else ", ".join(told)
    return found


def _follows(values: Mapping[tuple[int, str | None], None]) -> bool:
    """Return whether numbers grow as the workers do, or shrink so that all workers' together stay."""
    try:
        numbers = [(workers, float(value or "")) for workers, value in values]
    except ValueError:
        return False
    totals, shares = ({f(*one) for one in numbers} for f in (_total, _share))
    return len(totals) == 1 or len(shares) == 1


def _total(workers: int, value: float) -> float:
    return round(workers * value, 9)


def _share(workers: int, value: float) -> float:
    return round(value / workers, 9)


def _in_words(value: str | None) -> str:
    return "none" if value is None else value or "given"


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags with their values, ``--lr=1`` as ``--lr 1``, and what belongs to none by its place."""
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
