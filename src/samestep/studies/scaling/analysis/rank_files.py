"""Reads the files of a clocked run: JSON lines from each of its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.regular_files import read_lines
from samestep.base.untrusted_documents import parse_json
from samestep.studies.scaling.analysis.rank_lines import defect


@dataclass(frozen=True, slots=True)
class RankFile:
    """The file of one worker.

    Args:
        header: its first line: the rank, its machine and its versions.
        steps: a line for each measured step.
        end: its last line; empty if the worker ended before it was written.
    """

    header: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: a repeat of a number of workers.

    Args:
        ranks: the files of its workers, by rank.
        variant: the compared setting; empty for none.
        oversubscribed: whether its workers had fewer cores than threads, or shared an accelerator.
    """

    ranks: Sequence[RankFile]
    variant: str = ""
    oversubscribed: bool = False

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.ranks)


def read_ranks(folder: Path) -> list[RankFile]:
    """Return the files of a run's workers in `folder`, by rank.

    An incomplete last line, as of a killed worker, is ignored.

    Raises:
        UsageError: there is no file, one is damaged or cannot be read, or that of a worker is missing.
    """
    files = [_read(path) for path in folder.glob("rank-*.jsonl")]
    if not files:
        raise UsageError(f"{folder} holds no rank-0.jsonl: no step was measured there.")
    files.sort(key=lambda file: file.header["rank"])
    ranks, size = [file.header["rank"] for file in files], files[0].header["size"]
    if ranks != list(range(size)):
        there = ", ".join(map(str, ranks))
        raise UsageError(f"{folder} holds the files of ranks {there}, of a run of {size} workers.")
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
            raise UsageError(f"{path} is damaged: line {number} is not JSON.") from None
        if problem := defect(number, row):
            raise UsageError(f"{path} is damaged: line {number} {problem}.")
        if rows and "ended" in rows[-1]:
            raise UsageError(f"{path} is damaged: line {number} is after the end.")
        rows.append(row)
    if not rows:
        raise UsageError(f"{path} is empty: its worker ended before its first measured step.")
    end = rows.pop() if "ended" in rows[-1] else {}
    return RankFile(rows[0], rows[1:], end)
