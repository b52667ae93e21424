"""A run folder as a value: whatever of it there is, and nothing invented."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base import phases
from samestep.base.documents import TOML_BYTES, parse_json, parse_toml
from samestep.base.errors import UsageError
from samestep.base.regular_files import read_lines, read_text

PHASES = phases.OF_LOOP
OTHER = "other"
_COLUMNS = ("step", "loss", "lr", *PHASES)
_EVALUATED = ("seconds", "accuracy", "loss")
_NAN = float("nan")
_MOST = 1e18
"""Of anything that is counted or timed: sums and products of larger numbers have no end."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint at rest."""

    name: str
    num_bytes: int | None
    """None where it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run folder tells; lists are empty and mappings too where a file is missing."""

    path: Path
    config: Mapping[str, Any]
    steps: Mapping[str, "array[float]"]
    """By column: ``step``, ``loss`` (NaN where it was not finite), ``lr``, and seconds of each phase."""
    evaluations: list[dict[str, Any]]
    """A figure that was not finite is NaN, here and below."""
    ranks: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    result: Mapping[str, Any]
    """Empty: the run has not finished."""
    checkpoints: list[Checkpoint]

    @property
    def name(self) -> str:
        """What to call it: the folder's name."""
        return self.path.resolve().name

    @property
    def num_steps(self) -> int:
        """Steps that were taken, along the course that counts."""
        return int(self.steps["step"][-1]) if self.steps["step"] else 0

    @property
    def workers(self) -> int | None:
        """Workers of the last start; None where nobody says."""
        if self.sessions:
            return int(self.sessions[-1]["world_size"])
        return self.result.get("world_size")


def read_run(path: Path) -> Run:
    """Return what the run folder `path` tells.

    A last line that is half written, as a killed run leaves it, is left out.

    Raises:
        UsageError: it is no run folder, or a file of it is damaged; names the file and the line.
    """
    if not (path / "config.toml").is_file():
        raise UsageError(f"{path} is no run folder: there is no config.toml in it.")
    try:
        return Run(
            path=path,
            config=_toml(path / "config.toml"),
            steps=_columns(path / "metrics.jsonl"),
            evaluations=list(_rows(path / "evaluations.jsonl", ("step",), _EVALUATED, ("train_loss",))),
            ranks=list(
                _rows(path / "ranks.jsonl", ("step", "rank"), ("samples_per_second",), (*PHASES, OTHER))
            ),
            sessions=list(_rows(path / "sessions.jsonl", ("step", "world_size"))),
            result=_result(path / "result.json"),
            checkpoints=_checkpoints(path / "checkpoints"),
        )
    except OSError as error:
        raise UsageError(f"cannot read {error.filename or path}: {error.strerror}.") from None


def names(runs: Sequence[Run]) -> list[str]:
    """Return what to call each of several runs: the folder's name, or its path where two have the same."""
    count = Counter(run.name for run in runs)
    return [run.name if count[run.name] == 1 else str(run.path) for run in runs]


def _columns(path: Path) -> dict[str, "array[float]"]:
    columns = {name: array("d") for name in _COLUMNS}
    for row in _rows(path, ("step",), ("loss",), ("lr", *PHASES)):
        for name, column in columns.items():
            column.append(row.get(name, _NAN))
    return columns


def _rows(
    path: Path, counts: Sequence[str], figures: Sequence[str] = (), more: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; none where there is no file.

    Args:
        path: the file.
        counts: what each has as a number.
        figures: what each has as a number, or as null where it was not finite.
        more: figures that may be missing.
    """
    if not path.exists():
        return
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = parse_json(line)
        except ValueError:
            if not line.endswith("\n"):
                return
            raise UsageError(f"{path} is damaged: line {number} is no JSON.") from None
        where = f"line {number}"
        _check(path, where, row, (*counts, *figures))
        yield row | _numbers(path, where, row, counts, (*figures, *more))


def _check(path: Path, where: str, found: Any, needed: Sequence[str]) -> None:
    if not isinstance(found, dict) or any(name not in found for name in needed):
        raise UsageError(f"{path} is of something else: {where} lacks {', '.join(needed)}.")


def _numbers(
    path: Path, where: str, row: Mapping[str, Any], counts: Sequence[str], figures: Sequence[str]
) -> dict[str, float]:
    """Return the numbers in `row`; a figure that is null is NaN, which JSON does not have."""
    numbers = {name: row[name] for name in counts}
    numbers |= {name: _NAN if row[name] is None else row[name] for name in figures if name in row}
    for name, value in numbers.items():
        if not (_is_count(value) if name in counts else _is_number(value)):
            raise UsageError(
                f"{path} is damaged: {where} holds what is no number to {_MOST:g}: {name} {value!r:.40}."
            )
    return numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > _MOST


def _is_count(value: object) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= 0


def _result(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = parse_json(read_text(path, errors="replace"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: it is no JSON object.")
    counts, figures = ("epochs", "steps"), (*_EVALUATED, "samples_per_second")
    _check(path, "it", found, (*counts, *figures))
    return found | _numbers(path, "it", found, counts, figures)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path, most=TOML_BYTES, errors="replace"))
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}.") from None


def _checkpoints(path: Path) -> list[Checkpoint]:
    """Return the checkpoints in a folder; one that cannot be read is no reason against a page of the run."""
    try:
        steps = [folder for folder in path.iterdir() if folder.name.startswith("step-")]
    except OSError:
        return []
    steps.sort(key=lambda folder: (len(folder.name), folder.name))
    found = []
    for folder in steps:
        with suppress(FileNotFoundError, NotADirectoryError):  # a run that goes on removes old ones
            found.append(_checkpoint(folder))
    return found


def _checkpoint(folder: Path) -> Checkpoint:
    try:
        (folder / "manifest.json").lstat()
        return Checkpoint(folder.name, sum(file.stat().st_size for file in folder.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        return Checkpoint(folder.name, None)
