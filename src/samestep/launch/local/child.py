"""Turns a forked copy of the launcher into a worker, which sends its report to the launcher through a pipe.

A report is sent as its length and the pickled report.
"""

import errno
import os
import pickle
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from samestep.base import env
from samestep.base.errors import INTERRUPTED
from samestep.base.last_step import LastSteps
from samestep.base.place import Place
from samestep.base.signals import ENDS, WARNINGS
from samestep.base.stack_dumps import StackDumps
from samestep.launch.local import forking
from samestep.launch.local.hosting import Ending, leave
from samestep.launch.local.orphans import Lifeline, die_with_parent, file_identity
from samestep.launch.local.output import Stream
from samestep.launch.local.output_flush import OutputFlush
from samestep.ranks.hang.rank_status import SharedMemoryStore

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of a worker whose program has ended, sent before the worker exits."""

    ending: Ending  # end of the program
    result: Any = None  # further result of the worker
    final: bool = True  # otherwise it counts only if the worker sends no later one


@dataclass(frozen=True, slots=True)
class ReportPipe:
    """Worker's end of the report pipe, usable only by the worker itself and while it is still that pipe.

    A process that the program forks has a copy and does not report for the worker. A program may close
    descriptors that it has not opened, and open its own under the same number.
    """

    fd: int
    owner: int
    pipe: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> "ReportPipe":
        """Return the pipe with descriptor `fd`, owned by this process."""
        return cls(fd, os.getpid(), file_identity(fd))

    def send_provisional(self, ending: Ending) -> None:
        """Send the program's end, for the case that this worker sends no later report."""
        self._write(Report(ending=ending, final=False))

    def send(self, report: Report) -> None:
        """Send the report to the launcher; print its traceback on stderr if that fails."""
        if self._write(report):
            os.close(self.fd)
            return
        with suppress(Exception):  # stderr may be closed as well
            sys.stderr.write(report.ending.traceback)
            sys.stderr.flush()

    def _write(self, report: Report) -> bool:
        try:
            if os.getpid() != self.owner or file_identity(self.fd) != self.pipe:
                return False
            payload = _pickled(report)
            view = memoryview(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            return False
        return True


def received(data: bytearray) -> Report | None:
    """Remove the first complete report from the received bytes and return it; None if there is none."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    if len(data) < max(end, _LENGTH_BYTES + 1):
        return None
    ending, final, kind, result = pickle.loads(data[_LENGTH_BYTES:end])  # noqa: S301 - our own child's
    del data[:end]
    try:
        return Report(ending=ending, final=final, result=pickle.loads(result))  # noqa: S301
    except Exception as error:  # noqa: BLE001 - any error of unpickling user data is reported instead
        return _untransportable(f"a worker's result of type {kind} cannot be unpickled", error)


def _pickled(report: Report) -> bytes:
    kind = type(report.result).__name__
    try:
        result = pickle.dumps(report.result)
    except Exception as error:  # noqa: BLE001 - any error of pickling user data is reported instead
        report = _untransportable(f"a worker's result of type {kind} cannot be pickled", error)
        result = pickle.dumps(None)
    return pickle.dumps((report.ending, report.final, kind, result))


def _untransportable(what: str, error: Exception) -> Report:
    text = f"{what}: {type(error).__name__}: {error}\n"
    return Report(ending=Ending(exit_code=1, error=type(error).__name__, message=text, traceback=text))


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
    flush: OutputFlush | None = None  # writes the worker's buffered output before it is ended
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
        if inherited.flush is not None:
            inherited.flush.use_here(start.place.local_rank)
        if inherited.statuses is not None:
            inherited.statuses.use_here(start.place.rank)
        env.export(start.variables)
        pipe = ReportPipe.of(report_fd)
        report = entry(start, pipe)
        # A process that the program has forked reaches this line as well: it ends like one of any script.
        code = report.ending.exit_code
        pipe.send(report)
    except KeyboardInterrupt:  # before the program has begun, or after its end; the launcher reports it
        code = INTERRUPTED
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
