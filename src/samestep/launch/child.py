"""The worker's side of the fork: how a copy of the launcher becomes a worker."""

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
from samestep.launch import descriptors
from samestep.launch.hosting import leave
from samestep.launch.lifeline import Lifeline
from samestep.launch.orphans import die_with_parent
from samestep.launch.output import Stream
from samestep.launch.report import Report, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one worker is started with.

    Args:
        place: where it stands.
        variables: put into its environment.
        streams: where its output goes; empty for the launcher's own.
    """

    place: Place
    variables: Mapping[str, str]
    streams: Sequence[Stream] = ()


Entry = Callable[[Start, Word], Report]
"""Runs in the forked worker and says how that ended.

One that replaces the process does not return; its second argument is where the report may be sent instead.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heritage:
    """What the forked copy has of its launcher.

    Args:
        launcher: its pid.
        mask: the signals that it had blocked.
        private: its descriptors that are none of the worker's business.
        limit: its own limit of open files, where it was raised for the workers' sake.
        lifeline: ends what the worker forks when the launcher is killed.
        steps: where the worker records its last step.
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
        # Python 3.12 warns of any other thread; `fork_is_safe` knows which ones matter.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def become_worker(start: Start, entry: Entry, word: int, had: Heritage) -> NoReturn:
    """Turn the forked copy of the launcher into a worker, run it and leave."""
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
        mouth = Word.of(word)
        report = entry(start, mouth)
        # A process that the program has forked comes by here as well: it ends like one of any script.
        code = report.ending.exit_code
        mouth.send(report)
    except BaseException:  # noqa: BLE001 - a forked copy must never run the launcher's code
        sys.__excepthook__(*sys.exc_info())
    finally:
        leave(code)


def _restore_signals(mask: Collection[int | signal.Signals]) -> None:
    """Handle signals as a fresh interpreter does, and unblock them as before."""
    signal.set_wakeup_fd(-1)
    for number in (*ENDS, *WARNINGS):
        # What the launcher was started to ignore (nohup, a job in the background) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def not_started(start: Start, error: OSError) -> str:
    """Return what kept a worker from being started, and what helps."""
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
