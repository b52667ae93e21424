"""A table of workers and seconds that somebody measured, with a head or without."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from samestep.base.errors import UsageError
from samestep.base.regular_files import read_text
from samestep.base.units import counted
from samestep.scaling.times import Time, has_two_bases

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
_MOST = 1e12
"""Workers, and seconds: beyond it nothing was measured, and ratios of it have no end."""
_SEPARATORS = (";", "\t", ",")


def read_times(path: Path) -> list[Time]:
    """Return the runs that a CSV file lists; several of one number of workers are repeats.

    Cells are separated by commas, semicolons, tabs or spaces. A first line without numbers names the columns,
    which are workers and seconds otherwise, and perhaps strong or weak. Empty lines and those that begin with
    `#` are left out.

    Raises:
        UsageError: it cannot be read, is no text, or a line of it is something else; names the line.
    """
    try:
        text = read_text(path, errors="replace").removeprefix("\ufeff")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None
    if not _is_text(text):
        raise UsageError(
            f"{path} is no table: it holds characters that no text has. Give a CSV file, as text."
        )
    rows = list(_rows(text))
    if not rows:
        raise UsageError(f"{path} is empty: give lines of workers, seconds, such as 4, 12.5.")
    columns = _columns(path, *rows[0])
    times = [_time(path, number, cells, columns) for number, cells in (rows[1:] if columns else rows)]
    if not times:
        raise UsageError(f"{path} has a head and no line below it: give workers, seconds, such as 4, 12.5.")
    if len({time.workers for time in times}) < 2:
        raise UsageError(f"{path} tells of one number of workers only: for a speedup there must be two.")
    _refuse_bases_alone(path, times)
    return times


def _refuse_bases_alone(path: Path, times: Sequence[Time]) -> None:
    """Refuse strong and weak runs on the fewest workers where those of one mode are all that it has."""
    if not has_two_bases(times):
        return
    fewest = min(time.workers for time in times)
    for mode, is_weak in (("strong", False), ("weak", True)):
        if {time.workers for time in times if time.is_weak == is_weak} == {fewest}:
            raise UsageError(
                f"{path} has {mode} runs of {counted(fewest, 'worker')} only: add those of more workers, or "
                "leave them out; the fewest workers' lines count for both modes where all of them are of one."
            )


def _is_text(text: str) -> bool:
    """Return whether all of `text` may be shown: what is quoted in an error goes to a terminal."""
    return all(one.isprintable() or one.isspace() for one in text)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that has any."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, _cells(line.strip())


def _cells(line: str) -> list[str]:
    separator = next((one for one in _SEPARATORS if one in line), None)
    cells = [cell.strip().strip("\"'") for cell in line.split(separator)]
    # A comma that separates nothing is that of a decimal fraction, as many a spreadsheet writes it.
    return cells if separator == "," else [cell.replace(",", ".") for cell in cells]


def _columns(path: Path, number: int, cells: Sequence[str]) -> list[int] | None:
    """Return the places of workers, seconds, and a mode if there is one; None where the line is no head."""
    if any(_number(cell) is not None for cell in cells):
        return None
    names = [re.sub(r"[^a-z_]+.*", "", cell.lower().replace(" ", "_")).strip("_") for cell in cells]
    workers = [k for k, name in enumerate(names) if name in _WORKERS]
    seconds = [k for k, name in enumerate(names) if name in _SECONDS]
    if len(workers) != 1 or len(seconds) != 1:
        raise UsageError(
            f"{path}, line {number}: of the columns {', '.join(cells)}, one must be called workers "
            "and one seconds."
        )
    return [workers[0], seconds[0], *(k for k, name in enumerate(names) if name in _MODES)][:3]


def _time(path: Path, number: int, cells: Sequence[str], columns: Sequence[int] | None) -> Time:
    where = f"{path}, line {number}"
    if (len(cells) not in {2, 3}) if columns is None else (len(cells) <= max(columns)):
        raise UsageError(f"{where}: {', '.join(cells)!r} is not workers and seconds.")
    told = cells if columns is None else [cells[column] for column in columns]
    of_workers, of_seconds, mode = *told[:2], (told[2].lower() if told[2:] else "strong")
    workers, seconds = _number(of_workers), _number(of_seconds)
    if workers is None or not workers.is_integer() or not 1 <= workers <= _MOST:
        raise UsageError(f"{where}: {of_workers!r} is no number of workers.")
    if seconds is None or not 1 / _MOST <= seconds <= _MOST:
        raise UsageError(f"{where}: {of_seconds!r} is no time in seconds.")
    if mode not in {"strong", "weak"}:
        raise UsageError(f"{where}: {told[2]!r} is neither strong nor weak.")
    return Time(int(workers), seconds, is_weak=mode == "weak")


def _number(text: str) -> float | None:
    """Return the finite number that `text` is, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
