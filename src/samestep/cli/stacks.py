"""Implements ``samestep stacks``, which shows what the workers of a run on this host are doing."""

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base import event_record
from samestep.base.errors import Error, UsageError
from samestep.base.event_record import EventRecord, read_records, stacks_of
from samestep.base.record import json_line
from samestep.base.worker_records import Frame
from samestep.cli.options import results
from samestep.cli.options.declare import grouped, option, switch
from samestep.ranks.hang.rank_status import RankStatus, parse_status
from samestep.ranks.hang.script_position import is_script, with_text

_PY_SPY = "py-spy"
_BELOW = ("samestep/launch/local/hosting.py", "samestep/autopilot/helpers/helper_processes.py")
"""The files that run a script in its worker, and a helper."""


@grouped
def stacks(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="PID|DIR",
            help="The process of samestep run, of a worker, or of a parent; or a folder with records. "
            "Default: list the runs of this user on this host.",
        ),
    ] = None,
    *,
    events: Annotated[
        int,
        option(
            "K",
            f"Print the last K events of each worker, at most {event_record.EVENTS}.",
            min=0,
            max=event_record.EVENTS,
        ),
    ] = 5,
    libraries: Annotated[
        bool, switch("Print the lines of libraries too, not only those of the script.", "")
    ] = False,
    as_json: results.AsJson = False,
) -> None:
    """Show what each worker of a run on this host is doing: its stack, its last step and collective.

    It also shows the last events of workers that were killed, for a day. A process that samestep has not
    started is shown by py-spy, if that is installed.
    """
    records = _records(run)
    if as_json:
        workers = list(map(_document, records, stacks_of(records)))
        print(json_line({"folder": str(_folder(run)), "workers": workers}))
    elif run is None:
        _list_runs(records)
    elif records:
        described = (
            _lines(record, stack, events, with_libraries=libraries)
            for record, stack in zip(records, stacks_of(records), strict=True)
        )
        print("\n\n".join(map("\n".join, described)))
    else:
        _print_by_py_spy(run)


def _folder(run: str | None) -> Path:
    return event_record.folder() if run is None or run.isdecimal() else Path(run)


def _records(run: str | None) -> list[EventRecord]:
    """Return the records that are asked for.

    Raises:
        UsageError: there is no such folder, or none of its files is a record.
    """
    records = read_records(_folder(run))
    if run is None:
        return records
    if run.isdecimal():
        family = _descendants(int(run))
        return [
            record
            for record in records
            if int(run) in (record.worker.launcher, record.worker.process.pid)
            or (record.life == "alive" and record.worker.process.pid in family)
        ]
    if not records:
        kind = "has no records of workers" if Path(run).is_dir() else "is neither a process id nor a folder"
        raise UsageError(f"{run} {kind}. samestep stacks lists the runs of this host.")
    return records


def _descendants(pid: int) -> set[int]:
    import psutil

    with suppress(psutil.Error):
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return set()


def _print_by_py_spy(pid: str) -> None:
    """Show a process that has no record.

    Raises:
        UsageError: there is no such process, or no py-spy.
        Error: py-spy has failed.
    """
    if not Path(f"/proc/{pid}").exists():
        raise UsageError(
            f"no process {pid} runs here, and no record of it is left. samestep stacks lists the runs."
        )
    if shutil.which(_PY_SPY) is None:
        raise UsageError(
            f"process {pid} is no run of samestep. To see its stack, install py-spy: pip install py-spy"
        )
    ended = subprocess.run([_PY_SPY, "dump", "--pid", pid], check=False)
    if ended.returncode:
        raise Error(
            f"{_PY_SPY} dump --pid {pid} ended with exit code {ended.returncode}; it may need more rights."
        )


def _list_runs(records: Sequence[EventRecord]) -> None:
    if not records:
        print(f"no run of this user on this host has a record in {event_record.folder()}")
        return
    print(f"{'PID':>9}  workers  alive  script")
    runs = [list(group) for _, group in groupby(records, key=lambda record: record.worker.launcher)]
    # Runs of the last day that failed can fill the terminal; those that are running stand at its end.
    for workers in sorted(runs, key=_number_alive):
        worker = workers[0].worker
        print(f"{worker.launcher:>9}  {len(workers):>7}  {_number_alive(workers):>5}  {worker.script}")
    print(f"records: {event_record.folder()}")


def _number_alive(workers: Sequence[EventRecord]) -> int:
    return sum(worker.life == "alive" for worker in workers)


def _lines(record: EventRecord, stack: Sequence[Frame], events: int, *, with_libraries: bool) -> list[str]:
    worker, status = record.worker, _status(record)
    kind = "helper, rank" if worker.helps else "rank"
    lines = [f"{kind} {worker.rank} of {worker.size}, process {worker.process.pid}, {_state(record)}"]
    if status is not None:
        lines.append(f"  {_collective(status)}")
    lines += [f"  {_age(event.age_s)} ago: {event.text}" for event in record.events[-events:] if events]
    frames = _of_program(stack)
    shown = [frame for frame in frames if with_libraries or is_script(frame.file)]
    if shown:
        when = "" if record.life == "alive" else " when it was last written"
        lines.append(f"  stack of the main thread{when}, innermost first:")
        lines += [f"    {with_text(f'{frame.file}:{frame.line}')} (in {frame.function})" for frame in shown]
    elif frames:
        lines.append(f"  no line of the script; in {frames[0].function} ({frames[0].file}:{frames[0].line})")
    elif record.life == "alive":
        lines.append("  it writes no stack: it may be stopped, or run another program")
    return lines


def _of_program(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of the program, without those of samestep that run it."""
    return list(takewhile(lambda frame: not frame.file.endswith(_BELOW), frames))


def _state(record: EventRecord) -> str:
    if record.life != "dead":
        return {"alive": "running", "unknown": "on another host"}[record.life]
    return "has ended" if record.is_complete else "was killed"


def _status(record: EventRecord) -> RankStatus | None:
    return parse_status(record.status) if record.status else None


def _collective(status: RankStatus) -> str:
    if status.wait is not None:
        return f"waits in {status.wait} for {status.wait.age_s:.0f} s"
    return f"in no collective, after {status.collectives}"


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def _document(record: EventRecord, stack: Sequence[Frame]) -> dict[str, Any]:
    status = _status(record)
    return {
        **asdict(record.worker),
        "life": record.life,
        "events": [asdict(event) for event in record.events],
        "status": None if status is None else asdict(status),
        "stack": [asdict(frame) for frame in stack],
    }
