"""Records the steps of each worker's program (``--clock``), and ends all workers after the same step."""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TextIO

from samestep.autopilot.files.file_calls import unredirected
from samestep.base import env
from samestep.base.console import log
from samestep.base.errors import Error
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.launch.local.child import Around
from samestep.launch.local.hosting import Ending, exit_process
from samestep.launchers.detect import detect
from samestep.observe.clock.clock_file import ClockFile, ClockOptions, Kind, has_ended
from samestep.observe.clock.step_clock import ScriptClock

PATIENCE_S = 10.0
"""Seconds that a worker which has recorded its steps waits for the others."""
_KEPT = 1000  # characters of stderr that are kept, to find its last line


def clocked(
    run: Callable[[], Ending], *, around: Around, clocking: ClockOptions, kind: Kind, size: int
) -> Ending:
    """Run a worker's program in `around`, and record its steps; `size` is the number of workers."""
    place = detect(env.snapshot()).place
    if kind == "once":  # the helpers record no steps of their own, and some are no launcher's workers
        place = replace(place, size=size)
    recording = [clocking.file_of(rank) for rank in range(1 if kind == "once" else place.size)]
    with unredirected():  # the script's process may redirect the files that its workers write
        file = ClockFile(clocking, place, kind)
    clock = ScriptClock(
        file,
        clocking,
        stop=partial(_leave_together, file, clocking, place, [path.absolute() for path in recording]),
        loaders=place.size if kind == "native" else 1,
    )

    def run_clocked() -> Ending:
        with clock.attached(), _last_line(sys.stderr) as last_line:
            ending = run()
        failed = ending.error or (f"exit code {ending.exit_code}" if ending.exit_code else "")
        clock.end(f"error: {failed}" if failed else "end", ending.message or (last_line() if failed else ""))
        return ending if failed else replace(ending, exit_code=_checked(file))

    try:
        return around(run_clocked)
    except Error as error:
        clock.end(f"error: {type(error).__name__}", str(error))
        raise


@contextmanager
def _last_line(stream: TextIO) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the last line written to `stream`.

    It explains a bare exit code, and may appear nowhere else: only rank 0 of a serial script prints.
    """
    written, end = stream.write, ""

    def write(text: str) -> int:
        nonlocal end
        end = (end + text)[-_KEPT:]
        return written(text)

    with suppress(AttributeError):  # a user-defined stream may not allow it
        stream.write = write  # type: ignore[method-assign]
    try:
        yield lambda: next((line for line in reversed(end.splitlines()) if line.strip()), "").strip()
    finally:
        with suppress(AttributeError):
            del stream.write


def _leave_together(
    file: ClockFile, clocking: ClockOptions, place: Place, recording: Sequence[Path]
) -> NoReturn:
    """End this process, whatever exceptions the script catches, once all have recorded their steps."""
    holds_within(lambda: all(map(has_ended, recording)), PATIENCE_S, most_s=0.05)
    exit_code = _checked(file)
    if place.is_main and not exit_code:
        log(clocking.stopped_message())
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # that of a DataLoader raises when its workers end
    for child in multiprocessing.active_children():
        child.terminate()
    exit_process(exit_code)


def _checked(file: ClockFile) -> int:
    """Return the exit code of a program that ended well; log an error if some steps could not be written."""
    try:
        file.check()
    except Error as error:
        log(f"error: {error}")
        return error.exit_code
    return 0
