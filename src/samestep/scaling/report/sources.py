"""Loads a study from its own file, from runs on several numbers of workers, or from a table of times."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samestep.base.documents import FormatError, read_as
from samestep.base.errors import UsageError
from samestep.base.machine.description import CpuShare
from samestep.base.record import provenance
from samestep.base.regular_files import read_text
from samestep.base.units import counted
from samestep.report.read_run import OTHER, PHASES, read_run, table_in
from samestep.report.read_run import Run as TrainingRun
from samestep.scaling.analysis.points import UNIT, Time, from_times, has_two_bases, measured
from samestep.scaling.analysis.runs import (
    RankFile,
    Run,
    check_row,
    is_oversubscribed,
    launchers,
    machine,
    read_ranks,
    recipe,
)
from samestep.scaling.analysis.study import NAME, Note, Study, read_study
from samestep.scaling.analysis.verdict import conclude

_VALUE = re.compile(r"[^-]|-[\d.]|-$")  # beginning of an argument that is not a flag
_TRAINING_FLAGS = ("--data", "--model", "--fast", "--subset")
"""Flags of a recipe that determine which training it is."""

_IGNORED_FLAGS = frozenset(
    {
        *("-n", "--out", "--resume", "--clock", "--clock-steps", "--clock-warm-up", "--threads"),
        *("--recipe", "--label", "--seed", "--epochs", "--data-dir"),
        *("--evaluate-every", "--checkpoint-minutes", "--keep", "--stop-signal", "--per-rank"),
    }
)
"""Flags of a recipe that do not change a step, or are reported elsewhere."""

_DEVICE_TYPES = ("cpu", "mps", "xpu", "hpu")

WARM_UP = 5
"""Number of ignored steps after each start."""

_MACHINE = ("processor", "memory_bytes", "system", "torch", "python", "samestep")
"""Keys of a session's machine that the header of a clock file has too."""

_WORKER_COLUMNS = {
    "workers",
    "n",
    "np",
    "nprocs",
    "ranks",
    "processes",
    "gpus",
    "devices",
    "tasks",
    "world_size",
}
_SECOND_COLUMNS = {
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
# The unit in the name of a column with other times than seconds.
_OTHER_UNIT = re.compile(
    r"[^a-z](ns|us|ms|msec|milliseconds|mins?|minutes|h|hrs?|hours|days?)\b", re.IGNORECASE
)
_MODE_COLUMNS = {"mode", "scaling"}
_LARGEST = 1e12  # largest number of workers and of seconds; ratios of larger numbers overflow
_SEPARATORS = (";", "\t", ",")

_WHOLE_RUNS = (
    "Only the seconds of whole runs are known: strong runs are assumed to do the same work, weak ones the "
    "baseline's work for each worker."
)
_THREADS_DIFFER = (
    "Workers have other numbers of threads in some runs, so efficiency and overhead compare other numbers of "
    "cores, too. Add a run of one worker with as many threads as each of several (--threads)."
)
_FOLDER_STEPS = (
    "The step time of a run folder is the mean over all ranks, and over all steps since the last start but "
    f"the first {WARM_UP}."
)


def study_of(paths: Sequence[Path], *, bar: float | None = None) -> Study:
    """Return the study in `paths`.

    Args:
        paths: one ``study.json`` or its folder, one table of times, or folders of runs.
        bar: least efficiency of a worthwhile number of workers; None for the study's own, if it has one.

    Raises:
        UsageError: there is no study, a file is damaged, or runs belong to several trainings.
    """
    if len(paths) == 1 and is_study(paths[0]):
        study = read_study(paths[0])
        return study if bar is None else conclude(study, bar)
    if len(paths) == 1 and not paths[0].is_dir():
        return conclude(_of_times(paths[0]), bar)
    return conclude(_of_runs(paths), bar)


def is_about_scaling(paths: Iterable[Path]) -> bool:
    """Return whether all `paths` are files, folders of studies, or runs with a step clock."""
    return all(is_study(path) or _is_table(path) or _is_clocked(path) for path in paths)


def is_study(path: Path) -> bool:
    """Return whether `path` is a study file or a folder with one."""
    return (path / NAME).is_file() if path.is_dir() else path.suffix == ".json"


def _is_table(path: Path) -> bool:
    return path.is_file() or path.suffix == ".csv"


def _is_clocked(path: Path) -> bool:
    return (path / "rank-0.jsonl").is_file()


def _of_times(path: Path) -> Study:
    times, made = read_times(path), provenance()
    study = Study(
        target=path.name,
        command=tuple(made["command"]),
        created=made["created"],
        settings={"from": str(path), "runs": len(times)},
        unit=UNIT,
        points=from_times(times),
    )
    return study.with_notes([Note("whole-runs-only", _WHOLE_RUNS)])


def _of_runs(paths: Sequence[Path]) -> Study:
    _refuse_twice(paths)
    runs, made = _with_cores([_run(path) for path in paths]), provenance()
    check_same_training(paths, runs)
    counts = sorted({run.workers for run in runs})
    if len(counts) < 2:
        alone = counted(counts[0], "worker")
        raise UsageError(f"all runs are on {alone}: give runs on another number of workers too.")
    settings = {"from": [str(path) for path in paths], "launchers": launchers(runs), "recipe": recipe(runs)}
    study = Study(
        target=target(runs),
        command=tuple(made["command"]),
        created=made["created"],
        machine=machine(runs),
        settings={name: value for name, value in settings.items() if value},
        points=measured(runs),
        one_process=measured(runs, one_process=True),
    )
    notes = []
    if changed := differences(runs):
        notes.append(Note("settings-differ", f"The runs have different settings: {changed}."))
    if len({run.threads for run in runs if run.cores_of == 1 and run.device == "cpu"}) > 1:
        notes.append(Note("threads-differ", _THREADS_DIFFER))
    if not all(map(_is_clocked, paths)):
        notes.append(Note("run-folder-steps", _FOLDER_STEPS))
    return study.with_notes(notes)


def _with_cores(runs: Sequence[Run]) -> list[Run]:
    """Return the runs; one worker with the threads of several of the others has their cores.

    That is known if there is one with the threads of a single one as well.
    """
    threads = {run.threads for run in runs if run.workers > 1}
    each = threads.pop() if len(threads) == 1 else None
    alone = {run.threads for run in runs if run.workers == 1}
    if not each or each not in alone or any(run.device != "cpu" for run in runs):
        return [*runs]
    return [
        replace(run, cores_of=run.threads // each)
        if run.workers == 1 and run.threads and run.threads % each == 0
        else run
        for run in runs
    ]


def _refuse_twice(paths: Sequence[Path]) -> None:
    """Reject a folder that is given twice, which would count as two equal repeats.

    Raises:
        UsageError: two paths are one folder.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        folder = path.resolve()
        if folder in folders:
            raise UsageError(f"{path} is the same folder as {folders[folder]}: give each run once.")
        folders[folder] = path


def _run(path: Path) -> Run:
    if _is_clocked(path):
        ranks = read_ranks(path)
        return Run(ranks=ranks, oversubscribed=is_oversubscribed([rank.header for rank in ranks]))
    if path.is_file():
        raise UsageError(f"{path} is a file: give one study or one table of times alone, or folders of runs.")
    return measured_run(read_run(path))


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
    settings = {flag: value for flag, value in settings.items() if flag not in _IGNORED_FLAGS}
    source = "recipe" if config is None else "folder"
    return Invocation(run.workers, f"recipe {name}" if name else "", settings, source)


def check_same_training(paths: Sequence[Path], runs: Sequence[Run]) -> None:
    """Check that the runs in these paths belong to one training.

    Raises:
        UsageError: two runs belong to different trainings; names them.
    """
    first, *rest = map(invocation_of, runs)
    for path, invocation in zip(paths[1:], rest, strict=True):
        programs = _trained_apart(first, invocation)
        if programs:
            raise UsageError(
                f"{paths[0]} is a run of {programs[0]}, {path} of {programs[1]}: give runs of one training. "
                "To compare different programs, write their workers and seconds into a table."
            )


def differences(runs: Sequence[Run]) -> str:
    """Return the settings that differ between runs, and are not in proportion to the workers."""
    return "; ".join(f"{name}: {values}" for name, values in _differing(runs).items() if values)


def target(runs: Sequence[Run]) -> str:
    """Return the program and its arguments, with ``...`` for values that differ between runs."""
    first = invocation_of(runs[0])
    words, differing = [first.program or "a training"], _differing(runs)
    if first.source != "folder":
        for name, value in first.settings.items():
            shown = "..." if name in differing else value
            words += [name, shown] if name.startswith("-") else [shown]
    return " ".join(filter(None, words))


def _trained_apart(a: Invocation, b: Invocation) -> tuple[str, str] | None:
    """Return the trainings of two runs in words if they certainly differ."""
    if a.program != b.program and a.program and b.program:
        return a.program, b.program
    if a.source != b.source or a.source == "script":
        return None
    for name in _TRAINING_FLAGS:
        values = a.settings.get(name, ""), b.settings.get(name, "")
        if values[0] != values[1]:
            before, after = (f"{a.program} {name} {value}" if value else a.program for value in values)
            return before, after
    return None


def _differing(runs: Sequence[Run]) -> dict[str, str]:
    """Return the values of each setting that differs; empty if they are in proportion to the workers."""
    every = [invocation_of(run) for run in runs]
    every = [run for run in every if run.source == every[0].source and (run.program or run.settings)]
    names = dict.fromkeys(name for run in every for name in run.settings)
    texts_of = {}
    for name in names:
        values = dict.fromkeys((run.workers, run.settings.get(name)) for run in every)
        if len({value for _, value in values}) > 1:
            texts = (
                f"{'none' if value is None else value or 'given'} at {counted(workers, 'worker')}"
                for workers, value in values
            )
            texts_of[name] = "" if _is_proportional(values) else ", ".join(texts)
    return texts_of


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


def measured_run(run: TrainingRun) -> Run:
    """Return the steps since the last start of `run`; each has the mean times of its window.

    Raises:
        UsageError: the folder has no records of its ranks, or that of its last start is damaged.
    """
    if not run.sessions or not run.ranks:
        raise UsageError(
            f"{run.path} has no records of its workers: sessions.jsonl or ranks.jsonl is missing or empty."
        )
    session = run.sessions[-1]
    workers = int(session["world_size"])
    began = int(session["step"]) + WARM_UP
    shared = {**_header(session), "sync": _sync(run, workers), "config": dict(run.config)}
    try:
        check_row({"rank": 0, **shared}, is_header=True)
    except FormatError as error:
        raise UsageError(f"{run.path / 'sessions.jsonl'} is damaged: its last line {error}.") from None
    files = []
    for rank in range(workers):
        rows = [row for row in run.ranks if row["rank"] == rank]
        steps = [step for row in rows for step in _steps(row) if step["step"] > began]
        node = rank * int(session.get("nodes") or 1) // workers
        header = {**shared, "rank": rank, "node": node}
        files.append(RankFile(header, steps, {"samples_per_epoch": _epoch(run)}))
    return Run(ranks=files, oversubscribed=is_oversubscribed([file.header for file in files]))


def _steps(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the equal steps of a window; none if a number of it was not finite."""
    phases = {name: float(row.get(name, math.nan)) for name in PHASES}
    in_step, other_s = sum(phases.values()), float(row.get(OTHER, 0.0))  # older folders lack it
    samples = row["samples_per_second"] * in_step
    if not math.isfinite(samples + other_s):
        return
    fields = {"seconds": in_step + other_s, "samples": samples, "at": 0.0, **phases, OTHER: other_s}
    for before in range(int(row.get("steps", 1))):
        yield {"step": int(row["step"]) - before, **fields}


def _sync(run: TrainingRun, workers: int) -> str:
    """Return the algorithm of gradient synchronization; empty if there was none, or it was automatic."""
    sync = str(run.config.get("sync", "auto"))
    return "" if workers == 1 or sync == "auto" else sync


def _header(session: Mapping[str, Any]) -> dict[str, Any]:
    names = ("nodes", "launcher", "threads")
    machine = table_in(table_in(session, "provenance"), "machine")
    device = str(session.get("device", ""))
    is_type = device in _DEVICE_TYPES  # for an NVIDIA GPU, the session has its name
    return {
        "size": int(session["world_size"]),
        "kind": "recipe",
        "host": str(machine.get("hostname", "")),
        **{name: session[name] for name in names if name in session},
        "device": device if is_type or not device else "cuda",
        **({} if is_type or not device else {"device_name": device}),
        "processors": _processors(machine.get("cpu")),
        **{name: machine[name] for name in _MACHINE if name in machine},
    }


def _processors(cpu: object) -> int | None:
    """Return the number of cores that the workers of a node share; None if unknown.

    If the first worker was limited to some cores, the other workers can have had the rest.
    """
    try:
        share: CpuShare = read_as(CpuShare, cpu, "cpu")
    except FormatError:
        return None
    return share.usable if len(share.allowed) >= share.machine else share.machine


def _epoch(run: TrainingRun) -> float | None:
    """Return the number of samples per epoch, or None if no evaluation recorded it."""
    ends = [row for row in run.evaluations if row.get("epoch") and row.get("samples")]
    return ends[-1]["samples"] / ends[-1]["epoch"] if ends else None


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
    return all(letter.isprintable() or letter.isspace() for letter in text)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, _cells(line.strip())


def _cells(line: str) -> list[str]:
    separator = next((mark for mark in _SEPARATORS if mark in line), None)
    # A unit in parentheses belongs to the name before it.
    parts = line.split(separator) if separator else re.split(r"\s+(?![(\[])", line)
    cells = [cell.strip().strip("\"'") for cell in parts]
    # A comma that does not separate cells is a decimal comma, as some spreadsheets write it.
    return cells if separator == "," else [cell.replace(",", ".") for cell in cells]


def _columns(path: Path, number: int, cells: Sequence[str]) -> list[int] | None:
    """Return the columns of workers, seconds and optionally the mode; None if the line is not a header."""
    if any(_number(cell) is not None for cell in cells):
        return None
    names = [re.sub(r"[^a-z_]+.*", "", cell.lower().replace(" ", "_")).strip("_") for cell in cells]
    workers = [k for k, name in enumerate(names) if name in _WORKER_COLUMNS]
    seconds = [
        k for k, name in enumerate(names) if name in _SECOND_COLUMNS and not _OTHER_UNIT.search(cells[k])
    ]
    if len(workers) != 1 or len(seconds) != 1:
        raise UsageError(
            f"{path}, line {number}: the columns are {', '.join(cells)}; name one workers and one seconds."
        )
    return [workers[0], seconds[0], *(k for k, name in enumerate(names) if name in _MODE_COLUMNS)][:3]


def _time(path: Path, number: int, cells: Sequence[str], columns: Sequence[int] | None) -> Time:
    where = f"{path}, line {number}"
    if (len(cells) not in {2, 3}) if columns is None else (len(cells) <= max(columns)):
        raise UsageError(f"{where}: {', '.join(cells)!r} is not workers and seconds.")
    row = cells if columns is None else [cells[column] for column in columns]
    workers, seconds = map(_number, row[:2])
    mode = row[2].lower() if row[2:] else "strong"
    if workers is None or not workers.is_integer() or not 1 <= workers <= _LARGEST:
        raise UsageError(f"{where}: {row[0]!r} is not a number of workers.")
    if seconds is None or not 1 / _LARGEST <= seconds <= _LARGEST:
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
