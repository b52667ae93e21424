"""``--clock``: the step clock beside each worker's program, and their end after the same step."""

import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn, TextIO

from samestep.autopilot.calls import own_samples
from samestep.autopilot.steering import undo_replication
from samestep.base import env
from samestep.base.errors import Error
from samestep.base.place import Place
from samestep.cli.leaving import leave
from samestep.cli.running import tell
from samestep.launch.hosting import Ending
from samestep.launch.programs import Around
from samestep.measure.clock_file import ClockFile, ClockOptions, Kind, has_ended
from samestep.watch.clocked import ScriptClock
from samestep.world.detect import detect

PATIENCE_S = 10.0
"""How long a worker that has made its steps waits for the others to make theirs."""

_KEPT = 1000
"""Characters of what a worker wrote to stderr last."""


def clocked(run: Callable[[], Ending], *, around: Around, clocking: ClockOptions, kind: Kind) -> Ending:
    """Run a worker's program, in what it needs around it, and clock its steps.

    Args:
        run: runs it.
        around: what it needs.
        clocking: what is wanted.
        kind: what the program is.
    """
    environment = env.snapshot()
    place = detect(environment).place
    again = bool(env.integer(environment, "TORCHELASTIC_RESTART_COUNT"))
    file = ClockFile(clocking, place, kind, again=again)
    clock = ScriptClock(
        file,
        clocking,
        stop=partial(_leave_together, file, replace(clocking, folder=clocking.folder.absolute()), place),
        own=own_samples,
        loaders=place.size if kind == "native" else 1,
    )

    def heard() -> Ending:
        with clock.attached(), _last_line(sys.stderr) as said:
            ending = run()
        failed = ending.error or (f"exit code {ending.exit_code}" if ending.exit_code else "")
        clock.end(f"error: {failed}" if failed else "end", ending.message or (said() if failed else ""))
        return ending if failed else replace(ending, exit_code=_checked(file))

    try:
        return around(heard)
    except Error as error:
        clock.end(f"error: {type(error).__name__}", str(error))
        raise


@contextmanager
def _last_line(stream: TextIO) -> Iterator[Callable[[], str]]:
    """Give what tells the last line that was written: of a bare exit code it is the reason.

    It may be seen nowhere else: of a serial script's workers the first alone prints.
    """
    written, end = stream.write, ""

    def write(text: str) -> int:
        nonlocal end
        end = (end + text)[-_KEPT:]
        return written(text)

    with suppress(AttributeError):  # a stream of the script's own may have no room for it
        stream.write = write  # type: ignore[method-assign]
    try:
        yield lambda: next((line for line in reversed(end.splitlines()) if line.strip()), "").strip()
    finally:
        with suppress(AttributeError):
            del stream.write


def _leave_together(file: ClockFile, clocking: ClockOptions, place: Place) -> NoReturn:
    """End this process, whatever the script would catch, once the others have made their steps too."""
    deadline = time.monotonic() + PATIENCE_S
    others = [clocking.file_of(rank) for rank in range(place.size)]
    while time.monotonic() < deadline and not all(map(has_ended, others)):
        time.sleep(0.005)
    exit_code = _checked(file)
    if place.is_main and not exit_code:
        tell(clocking.stopped_message())
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a loader's would take its workers' end for a failure
    undo_replication()
    for child in multiprocessing.active_children():
        child.terminate()
    leave(exit_code)


def _checked(file: ClockFile) -> int:
    """Return the exit code of a program that ended well; say which steps are missing, if some are."""
    try:
        file.check()
    except Error as error:
        tell(f"error: {error}")
        return error.exit_code
    return 0
