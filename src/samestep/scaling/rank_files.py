"""What a clocked run leaves behind: a file of JSON lines from each of its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.documents import parse_json
from samestep.base.errors import UsageError
from samestep.base.regular_files import read_lines
from samestep.scaling.rank_lines import wrong


@dataclass(frozen=True, slots=True)
class RankFile:
    """What one worker of a run wrote.

    Args:
        header: its first line: who the worker is, and on what it ran.
        steps: a line for each measured step.
        end: its last line; empty where the worker did not come to write it.
    """

    header: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, measured: a repeat of a number of workers.

    Args:
        ranks: what each worker wrote, by rank.
        variant: what is compared within the study; empty for nothing.
        oversubscribed: whether its workers had fewer cores than threads, or fewer accelerators than workers.
    """

    ranks: Sequence[RankFile]
    variant: str = ""
    oversubscribed: bool = False

    @property
    def workers(self) -> int:
        """How many."""
        return len(self.ranks)


def read_ranks(folder: Path) -> list[RankFile]:
    """Return what the workers of a run wrote to `folder`, by rank.

    A last line that is half written, as a killed worker leaves it, is left out.

    Raises:
        UsageError: there is nothing, a file is damaged or cannot be read, or a worker's is missing.
    """
    files = [_read(path) for path in folder.glob("rank-*.jsonl")]
    if not files:
        raise UsageError(f"{folder} holds no rank-0.jsonl: no step was measured there.")
    files.sort(key=lambda file: file.header["rank"])
    ranks, size = [file.header["rank"] for file in files], files[0].header["size"]
    if ranks != list(range(size)):
        there = ", ".join(map(str, ranks))
        raise UsageError(f"{folder} is of {size} workers, and holds the files of ranks {there}.")
    return files


def _read(path: Path) -> RankFile:
    try:
        lines = list(read_lines(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
        except ValueError:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise UsageError(f"{path} is damaged: line {number} is no JSON.") from None
        if said := wrong(number, row):
            raise UsageError(f"{path} is damaged: line {number} {said}.")
        if rows and "ended" in rows[-1]:
            raise UsageError(f"{path} is damaged: line {number} comes after the end.")
        rows.append(row)
    if not rows:
        raise UsageError(f"{path} is empty: its worker ended before its first measured step.")
    end = rows.pop() if "ended" in rows[-1] else {}
    return RankFile(rows[0], rows[1:], end)
