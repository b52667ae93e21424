"""Turns a forked copy of the launcher into a worker."""

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from samestep.base import env
from samestep.base.last_step import LastSteps
from samestep.base.place import Place
from samestep.base.signals import ENDS, WARNINGS
from samestep.launch.local import descriptors
from samestep.launch.local.hosting import leave
from samestep.launch.local.lifeline import Lifeline
from samestep.launch.local.orphans import die_with_parent
from samestep.launch.local.output import Stream
from samestep.launch.local.worker_report import Report, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Place, environment and output of one worker at its start.

    Args:
        place: its place.
        variables: variables of its environment.
        streams: targets of its output; empty for the launcher's own streams.
    """

    place: Place
    variables: Mapping[str, str]
    streams: Sequence[Stream] = ()


Entry = Callable[[Start, Word], Report]
"""Function that runs in the forked worker and returns its report.

One that replaces the process does not return; its second argument is the pipe to which the new program may
send the report.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heritage:
    """Inherited state of the launcher in the forked copy.

    Args:
        launcher: process ID of the launcher.
        mask: the signals that it had blocked.
        private: its descriptors that the worker must close.
        limit: its original limit of open files, if the launcher raised it for the workers.
        lifeline: ends the processes that the worker forks, if the launcher is killed.
        steps: record of the worker's last step.
    """

    launcher: int
    mask: Collection[int | signal.Signals]
    private: Collection[int]
    limit: descriptors.Limit | None
    lifeline: Lifeline | None = None
    steps: LastSteps | None = None


def fork() -> int:
    """Fork this process, as `os.fork`."""
    with warnings.catch_warnings():
        # Python 3.12 warns about any other thread; `fork_is_safe` checks those that matter.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def become_worker(start: Start, entry: Entry, word: int, had: Heritage) -> NoReturn:
    """Turn the forked copy of the launcher into a worker, run it and exit."""
    code = 1
    try:
        die_with_parent(had.launcher)
        _restore_signals(had.mask)
        for stream in start.streams:
            stream.attach()
        own = {fd for stream in start.streams for fd in stream.files}
        descriptors.close({*had.private, *own})
        descriptors.restore(had.limit)
        if had.lifeline is not None:
            had.lifeline.hold()
        if had.steps is not None:
            had.steps.use_here(start.place.local_rank)
        env.export(start.variables)
        pipe = Word.of(word)
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
