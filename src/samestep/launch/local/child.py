"""Turns a forked copy of the launcher into a worker."""

import errno
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from samestep.base import env
from samestep.base.last_step import LastSteps
from samestep.base.place import Place
from samestep.base.signals import ENDS, WARNINGS
from samestep.base.stack_dumps import StackDumps
from samestep.launch.local import forking
from samestep.launch.local.hosting import leave
from samestep.launch.local.orphans import Lifeline, die_with_parent
from samestep.launch.local.output import Stream
from samestep.launch.local.worker_report import Report, ReportPipe
from samestep.ranks.hang.status_store import SharedMemoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Place, environment and output of one worker at its start."""

    place: Place  # its place
    variables: Mapping[str, str]  # variables of its environment
    streams: Sequence[Stream] = ()  # targets of its output; empty for the launcher's own streams


Entry = Callable[[Start, ReportPipe], Report]
"""Function that runs in the forked worker and returns its report.

One that replaces the process does not return; its second argument is the pipe to which the new program may
send the report.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritedState:
    """Inherited state of the launcher in the forked copy."""

    launcher: int  # process ID of the launcher
    mask: Collection[int | signal.Signals]  # the signals that it had blocked
    private: Collection[int]  # its descriptors that the worker must close
    limit: forking.Limit | None  # its original limit of open files, if the launcher raised it for the workers
    lifeline: Lifeline | None = None  # ends the processes that the worker forks, if the launcher is killed
    steps: LastSteps | None = None  # record of the worker's last step
    stacks: StackDumps | None = None  # files for the stacks of workers that a fatal signal kills
    statuses: SharedMemoryStore | None = None  # what each worker executes


def become_worker(start: Start, entry: Entry, report_fd: int, inherited: InheritedState) -> NoReturn:
    """Turn the forked copy of the launcher into a worker, run it and exit."""
    code = 1
    try:
        die_with_parent(inherited.launcher)
        _restore_signals(inherited.mask)
        sys.unraisablehook = report_unless_interrupted
        for stream in start.streams:
            stream.attach()
        own = {fd for stream in start.streams for fd in stream.files}
        forking.close_files({*inherited.private, *own})
        forking.restore_file_limit(inherited.limit)
        if inherited.lifeline is not None:
            inherited.lifeline.hold()
        if inherited.steps is not None:
            inherited.steps.use_here(start.place.local_rank)
        if inherited.stacks is not None:
            inherited.stacks.use_here(start.place.local_rank)
        if inherited.statuses is not None:
            inherited.statuses.use_here(start.place.rank)
        env.export(start.variables)
        pipe = ReportPipe.of(report_fd)
        report = entry(start, pipe)
        # A process that the program has forked reaches this line as well: it ends like one of any script.
        code = report.ending.exit_code
        pipe.send(report)
    except BaseException:  # noqa: BLE001 - a forked copy must never run the launcher's code
        sys.__excepthook__(*sys.exc_info())
    finally:
        leave(code)


def _restore_signals(mask: Collection[int | signal.Signals]) -> None:
    """Handle signals as a fresh interpreter does, and restore the mask of blocked ones."""
    signal.set_wakeup_fd(-1)
    for number in (*ENDS, *WARNINGS):
        # Signals that the launcher was started to ignore (nohup, a background job) stay ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def report_unless_interrupted(unraisable: "sys.UnraisableHookArgs") -> None:
    """Report an exception of a finalizer as Python does, unless it is Ctrl-C, which the launcher reports.

    A launcher without a terminal forwards SIGINT, so that workers can receive it twice: the second one
    arrives in their finalizers.
    """
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def not_started(start: Start, error: OSError) -> str:
    """Return the message about a worker that could not be started, with the remedy."""
    limits = {
        errno.EMFILE: " This process may not open more files: raise `ulimit -n`.",
        errno.EAGAIN: " This user may not start more processes: raise `ulimit -u`, or ask for fewer workers.",
        errno.ENOMEM: " Ask for fewer workers.",
    }
    where = "" if error.filename is None else f" ({error.filename})"
    return (
        f"the worker of rank {start.place.rank} could not be started: {error.strerror}{where}."
        f"{limits.get(error.errno or 0, '')}"
    )
