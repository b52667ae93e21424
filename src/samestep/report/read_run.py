"""Reads a run folder; missing files give empty values."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base import step_phases
from samestep.base.documents import TOML_BYTES, parse_json, parse_toml, read_json_lines
from samestep.base.errors import UsageError
from samestep.base.regular_files import read_text
from samestep.base.units import counted

PHASES = step_phases.OF_LOOP
OTHER = "other"
_COLUMNS = ("step", "loss", "lr", *PHASES)
_EVALUATED = ("seconds", "accuracy", "loss")
_NAN = float("nan")
_MOST = 1e18  # largest count or time; sums and products of larger numbers overflow


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    name: str
    num_bytes: int | None  # size; None if the checkpoint cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The contents of a run folder; the values of missing files are empty."""

    path: Path
    config: Mapping[str, Any]
    steps: Mapping[str, "array[float]"]
    """Columns ``step``, ``loss``, ``lr``, and seconds of each phase; numbers that were not finite are NaN."""
    evaluations: list[dict[str, Any]]
    ranks: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    result: Mapping[str, Any]
    """Final result; empty if the run has not finished."""
    checkpoints: list[Checkpoint]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def num_steps(self) -> int:
        """Number of steps in the current lineage."""
        return int(self.steps["step"][-1]) if self.steps["step"] else 0

    @property
    def workers(self) -> int | None:
        """Number of workers of the last start; None if unknown."""
        if self.sessions:
            return int(self.sessions[-1]["world_size"])
        return self.result.get("world_size")


def read_run(path: Path) -> Run:
    """Return the contents of the run folder `path`.

    An incomplete last line, as a killed run leaves it, is ignored.

    Raises:
        UsageError: it is not a run folder, or a file in it is damaged; names the file and the line.
    """
    if not (path / "config.toml").is_file():
        why = "is not a run folder: it has no config.toml" if path.exists() else "does not exist"
        if (path / "study.json").exists():
            raise UsageError(f"{path} is a study; give one study alone, or the folders of several trainings.")
        raise UsageError(f"{path} {why}. Give the folder of a training, or a study.")
    try:
        return Run(
            path=path,
            config=_toml(path / "config.toml"),
            steps=_columns(path / "metrics.jsonl"),
            evaluations=list(
                _rows(
                    path / "evaluations.jsonl",
                    ("step",),
                    _EVALUATED,
                    more=("train_loss",),
                    more_counts=("epoch", "samples"),
                )
            ),
            ranks=list(
                _rows(
                    path / "ranks.jsonl",
                    ("step", "rank"),
                    ("samples_per_second",),
                    more=(*PHASES, OTHER),
                    more_counts=("steps",),
                )
            ),
            sessions=list(
                _rows(path / "sessions.jsonl", ("step", "world_size"), more_counts=("nodes", "threads"))
            ),
            result=_result(path / "result.json"),
            checkpoints=_checkpoints(path / "checkpoints"),
        )
    except OSError as error:
        raise UsageError(f"cannot read {error.filename or path}: {error.strerror}.") from None


def names(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for each run: the folder's name, or its path if two names are equal."""
    count = Counter(run.name for run in runs)
    return [run.name if count[run.name] == 1 else str(run.path) for run in runs]


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a unique label for each run: of several, its name with its number of workers."""
    unique = names(runs)
    if len(runs) == 1:
        return unique
    return [
        f"{name}, {counted(run.workers, 'worker')}" if run.workers else name
        for name, run in zip(unique, runs, strict=True)
    ]


def table_in(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object of that name in a session's line; empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _columns(path: Path) -> dict[str, "array[float]"]:
    columns = {name: array("d") for name in _COLUMNS}
    for row in _rows(path, ("step",), ("loss",), more=("lr", *PHASES)):
        for name, column in columns.items():
            column.append(row.get(name, _NAN))
    return columns


def _rows(
    path: Path,
    counts: Sequence[str],
    figures: Sequence[str] = (),
    *,
    more: Sequence[str] = (),
    more_counts: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; none if the file does not exist.

    Integers (`counts`) and numbers (`figures`) are required, `more` numbers and `more_counts` optional; null
    stands for a number that is NaN.
    """
    if not path.exists():
        return
    for number, row in read_json_lines(path):
        where = f"line {number}"
        _check(path, where, row, (*counts, *figures))
        yield row | _numbers(path, where, row, (*counts, *more_counts), (*figures, *more))


def _check(path: Path, where: str, document: Any, needed: Sequence[str]) -> None:
    if not isinstance(document, dict) or any(name not in document for name in needed):
        raise UsageError(f"{path} has another format: {where} lacks one of {', '.join(needed)}.")


def _numbers(
    path: Path, where: str, row: Mapping[str, Any], counts: Sequence[str], figures: Sequence[str]
) -> dict[str, float]:
    """Return the numbers in `row` with these names; null, which JSON has for NaN, becomes NaN."""
    numbers = {name: row[name] for name in counts if name in row}
    numbers |= {name: _NAN if row[name] is None else row[name] for name in figures if name in row}
    for name, value in numbers.items():
        if not (_is_count(value) if name in counts else _is_number(value)):
            raise UsageError(
                f"{path} is damaged: {name} in {where} is {value!r:.40}, not a number up to {_MOST:g}."
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
        document = parse_json(read_text(path, errors="replace"))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UsageError(f"{path} is damaged: it is not a JSON object.")
    counts, figures = ("epochs", "steps"), (*_EVALUATED, "samples_per_second")
    _check(path, "the object", document, (*counts, *figures))
    return document | _numbers(path, "the object", document, (*counts, "world_size"), figures)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path, most=TOML_BYTES, errors="replace"))
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}.") from None


def _checkpoints(path: Path) -> list[Checkpoint]:
    """Return the checkpoints in a folder, with those that cannot be read."""
    try:
        steps = [folder for folder in path.iterdir() if folder.name.startswith("step-")]
    except OSError:
        return []
    steps.sort(key=lambda folder: (len(folder.name), folder.name))
    checkpoints = []
    for folder in steps:
        with suppress(FileNotFoundError, NotADirectoryError):  # a live run removes old checkpoints
            checkpoints.append(_checkpoint(folder))
    return checkpoints


def _checkpoint(folder: Path) -> Checkpoint:
    try:
        (folder / "manifest.json").lstat()
        return Checkpoint(folder.name, sum(file.stat().st_size for file in folder.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        return Checkpoint(folder.name, None)
