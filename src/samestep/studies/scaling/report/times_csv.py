"""Reads a user's table of workers and seconds, with or without a header."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.regular_files import read_text
from samestep.base.units import counted
from samestep.studies.scaling.analysis.points import Time, has_two_bases

_WORKERS = {"workers", "n", "np", "nprocs", "ranks", "processes", "gpus", "devices", "tasks", "world_size"}
_SECONDS = {
    "seconds",
    "s",
    "sec",
    "time",
    "time_s",
    "runtime",
    "elapsed",
    "walltime",
    "wall_time",
    "duration",
}
_MODES = {"mode", "scaling"}
_MOST = 1e12  # largest number of workers and of seconds; ratios of larger numbers overflow
_SEPARATORS = (";", "\t", ",")


def read_times(path: Path) -> list[Time]:
    """Return the runs in a CSV file; several runs on one number of workers are repeats.

    Cells are separated by commas, semicolons, tabs or spaces. A first line without numbers is a header;
    otherwise the columns are workers, seconds and optionally strong or weak. Empty lines and lines that begin
    with `#` are ignored.

    Raises:
        UsageError: the file cannot be read, is not text, or has an invalid line; names the line.
    """
    try:
        text = read_text(path, errors="replace").removeprefix("\ufeff")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None
    if not _is_text(text):
        raise UsageError(f"{path} is not a text file: it has control characters. Give a CSV file.")
    rows = list(_rows(text))
    if not rows:
        raise UsageError(f"{path} is empty: give lines of workers, seconds, such as 4, 12.5.")
    columns = _columns(path, *rows[0])
    times = [_time(path, number, cells, columns) for number, cells in (rows[1:] if columns else rows)]
    if not times:
        raise UsageError(f"{path} has only a header: add lines of workers, seconds, such as 4, 12.5.")
    if len({time.workers for time in times}) < 2:
        raise UsageError(f"{path} has only one number of workers: add a line with another one.")
    _check_baselines(path, times)
    return times


def _check_baselines(path: Path, times: Sequence[Time]) -> None:
    """Check that strong and weak baselines each have runs on more workers.

    Raises:
        UsageError: a mode has runs on its baseline only.
    """
    if not has_two_bases(times):
        return
    baseline = min(time.workers for time in times)
    for mode, is_weak in (("strong", False), ("weak", True)):
        if {time.workers for time in times if time.is_weak == is_weak} == {baseline}:
            raise UsageError(
                f"{path} has {mode} runs on {counted(baseline, 'worker')} only: add runs on more workers, or "
                "remove them. A baseline in one mode counts for both."
            )


def _is_text(text: str) -> bool:
    """Return whether `text` has no control characters; error messages print parts of it to a terminal."""
    return all(one.isprintable() or one.isspace() for one in text)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, _cells(line.strip())


def _cells(line: str) -> list[str]:
    separator = next((one for one in _SEPARATORS if one in line), None)
    cells = [cell.strip().strip("\"'") for cell in line.split(separator)]
    # A comma that does not separate cells is a decimal comma, as some spreadsheets write it.
    return cells if separator == "," else [cell.replace(",", ".") for cell in cells]


def _columns(path: Path, number: int, cells: Sequence[str]) -> list[int] | None:
    """Return the columns of workers, seconds and optionally the mode; None if the line is not a header."""
    if any(_number(cell) is not None for cell in cells):
        return None
    names = [re.sub(r"[^a-z_]+.*", "", cell.lower().replace(" ", "_")).strip("_") for cell in cells]
    workers = [k for k, name in enumerate(names) if name in _WORKERS]
    seconds = [k for k, name in enumerate(names) if name in _SECONDS]
    if len(workers) != 1 or len(seconds) != 1:
        raise UsageError(
            f"{path}, line {number}: the columns are {', '.join(cells)}; name one workers and one seconds."
        )
    return [workers[0], seconds[0], *(k for k, name in enumerate(names) if name in _MODES)][:3]


def _time(path: Path, number: int, cells: Sequence[str], columns: Sequence[int] | None) -> Time:
    where = f"{path}, line {number}"
    if (len(cells) not in {2, 3}) if columns is None else (len(cells) <= max(columns)):
        raise UsageError(f"{where}: {', '.join(cells)!r} is not workers and seconds.")
    row = cells if columns is None else [cells[column] for column in columns]
    workers, seconds = map(_number, row[:2])
    mode = row[2].lower() if row[2:] else "strong"
    if workers is None or not workers.is_integer() or not 1 <= workers <= _MOST:
        raise UsageError(f"{where}: {row[0]!r} is not a number of workers.")
    if seconds is None or not 1 / _MOST <= seconds <= _MOST:
        raise UsageError(f"{where}: {row[1]!r} is not a time in seconds.")
    if mode not in {"strong", "weak"}:
        raise UsageError(f"{where}: {row[2]!r} is neither strong nor weak.")
    return Time(int(workers), seconds, is_weak=mode == "weak")


def _number(text: str) -> float | None:
    """Return the number in `text`, or None if there is no finite one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
