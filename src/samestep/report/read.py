"""A run folder as a value: whatever of it there is, and nothing invented."""

import json
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PHASES = ("data", "forward", "backward", "exposed_sync", "optimizer")
_COLUMNS = ("step", "loss", "lr", *PHASES)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint at rest."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run folder tells; lists are empty and mappings too where a file is missing."""

    path: Path
    config: Mapping[str, Any]
    steps: Mapping[str, "array[float]"]
    """By column: ``step``, ``loss`` (NaN where it was not finite), ``lr``, and seconds of each phase."""
    evaluations: list[dict[str, Any]]
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
            evaluations=list(_rows(path / "evaluations.jsonl", ("step", "seconds", "accuracy", "loss"))),
            ranks=list(_rows(path / "ranks.jsonl", ("step", "rank", "samples_per_second"))),
            sessions=list(_rows(path / "sessions.jsonl", ("step", "world_size"))),
            result=_json(path / "result.json"),
            checkpoints=_checkpoints(path / "checkpoints"),
        )
    except OSError as error:
        raise UsageError(f"cannot read {error.filename or path}: {error.strerror}.") from None


def _columns(path: Path) -> dict[str, "array[float]"]:
    columns = {name: array("d") for name in _COLUMNS}
    for row in _rows(path, ("step", "loss")):
        for name, column in columns.items():
            value = row.get(name)
            column.append(float("nan") if value is None else value)
    return columns


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; none where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                if not line.endswith("\n"):
                    return
                raise UsageError(f"{path} is damaged: line {number} is no JSON.") from None
            if not isinstance(row, dict) or any(name not in row for name in needed):
                raise UsageError(f"{path} is of something else: line {number} lacks {', '.join(needed)}.")
            if not all(isinstance(row[name], int | float | None) for name in needed):
                raise UsageError(f"{path} is damaged: line {number} holds what is no number.")
            yield row


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: it is no JSON object.")
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8", errors="replace"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is damaged: {error}.") from None


def _checkpoints(path: Path) -> list[Checkpoint]:
    if not path.is_dir():
        return []
    steps = [folder for folder in path.glob("step-*") if (folder / "manifest.json").is_file()]
    steps.sort(key=lambda folder: (len(folder.name), folder.name))
    return [Checkpoint(one.name, sum(file.stat().st_size for file in one.iterdir())) for one in steps]
