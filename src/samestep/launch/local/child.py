"""Turns a forked copy of the launcher into a worker, which sends its report to the launcher through a pipe.

A report is sent as its length and the pickled report.
"""

import errno
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

from samestep.base import env
from samestep.base.errors import INTERRUPTED, Error
from samestep.base.machine.c_libraries import settle_math_kernels
from samestep.base.place import Place
from samestep.base.signals import ENDS, WARNINGS
from samestep.base.worker_records import LastSteps, StackDumps
from samestep.launch.job import Program
from samestep.launch.local import forking
from samestep.launch.local.hosting import Ending, ending_of, host, leave
from samestep.launch.local.orphans import Lifeline, die_with_parent, file_identity
from samestep.launch.local.output import OutputFlush, Stream, withdraw
from samestep.ranks.hang.rank_status import SharedMemoryStore

_LENGTH_BYTES = 8  # size of the length before a report


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


def _untransportable(problem: str, error: Exception) -> Report:
    text = f"{problem}: {type(error).__name__}: {error}\n"
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
    """State of the launcher that all workers of a round inherit."""

    launcher: int  # process ID of the launcher
    limit: forking.Limit | None  # its original limit of open files, if the launcher raised it for the workers
    lifeline: Lifeline  # ends the processes that a worker forks, if the launcher is killed
    steps: LastSteps  # record of each worker's last step
    stacks: StackDumps  # files for the stacks of workers that a fatal signal kills
    flush: OutputFlush  # writes a worker's buffered output before it is ended
    statuses: SharedMemoryStore  # what each worker executes


def become_worker(
    start: Start,
    entry: Entry,
    report_fd: int,
    inherited: InheritedState,
    *,
    mask: Collection[int | signal.Signals],
    private: Collection[int],
) -> NoReturn:
    """Turn the forked copy of the launcher into a worker, run it and exit.

    The launcher had blocked the signals that are not in `mask`. The worker closes the `private` descriptors.
    """
    code = 1
    try:
        die_with_parent(inherited.launcher)
        _restore_signals(mask)
        sys.unraisablehook = report_unless_interrupted
        for stream in start.streams:
            stream.attach()
        streams = {fd for stream in start.streams for fd in stream.files}
        forking.close_files({*private, *streams})
        forking.restore_file_limit(inherited.limit)
        inherited.lifeline.hold()
        for of_worker in (inherited.steps, inherited.stacks, inherited.flush):
            of_worker.use_here(start.place.local_rank)
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


_OTHER_WAYS = ("mpi4py", "horovod", "ray", "jax")
"""Modules by which processes may join each other without leaving the checked traces in torch.distributed."""


Around: TypeAlias = Callable[[Callable[[], Ending]], Ending]
"""Function that runs a worker's program, its argument, in the contexts that the program needs."""


Watch: TypeAlias = Callable[[Callable[[], Ending], Callable[[Ending], None]], Ending]
"""Function that runs a worker's program, its first argument, and watches it.

It calls its second argument with the program's end, for the case that the worker sends no later report.
"""


def as_it_is(run: Callable[[], Ending]) -> Ending:
    """Run a program without further contexts."""
    return run()


def unwatched(run: Callable[[], Ending], _: Callable[[Ending], None]) -> Ending:
    """Run a program without watching it."""
    return run()


def entry_of(
    program: Program,
    *,
    hosted: bool = True,
    around: Around = as_it_is,
    watch: Watch = unwatched,
    joins: bool = True,
) -> Entry:
    """Return the function that each worker runs; its report's result is `has_common_group`.

    Python code runs in the forked worker if it is `hosted`; otherwise a fresh interpreter replaces it.
    `around` runs a hosted program in its contexts, and `watch` runs and watches both. A program that starts
    the workers itself does not join them.
    """

    def run(start: Start, pipe: ReportPipe) -> Report:
        if program.kind == "executable" or not hosted:
            return become(program)
        seed_generators()
        settle_math_kernels()
        if joins and start.place.size > 1:
            from samestep.ranks.world.torch_rendezvous import prepare_groups

            prepare_groups()
        ending = watch(
            partial(_ending, around, partial(host, program, pipe.send_provisional)), pipe.send_provisional
        )
        return Report(ending=ending, result=has_common_group(start.place.size))

    return run


def _ending(around: Around, run: Callable[[], Ending]) -> Ending:
    """Run a program in its contexts, which may refuse it."""
    try:
        return around(run)
    except Error as error:
        return ending_of(error)


def has_common_group(size: int) -> bool:
    """Return whether this process has joined all its peers; True if that cannot be determined."""
    if size == 1 or any(name in sys.modules for name in _OTHER_WAYS):
        return True
    sizes = getattr(sys.modules.get("samestep.ranks.world.torch_rendezvous"), "group_sizes", None)
    if sizes:
        return size in sizes
    if getattr(sys.modules.get("torch.distributed.rpc"), "_init_counter", 0):
        return True
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return False
    # A group leaves these traces after it is destroyed; unlike a patched function they cannot be missed. One
    # created with `store=` has no method, but the hook that puts the rank before each line of a traceback.
    method = getattr(c10d, "_default_pg_init_method", "unknown")
    return method is not None or bool(c10d.is_initialized()) or sys.excepthook is not sys.__excepthook__


def interpreter() -> list[str]:
    """Return the words that start this interpreter again, with its options, such as ``-O`` and ``-W``."""
    return [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]  # noqa: SLF001


def become(program: Program) -> Report:
    """Replace this process by the executable; return only if that fails."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an ignored signal stays ignored after exec
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    command = program.command(*interpreter())
    withdraw()
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell, as intended
    except OSError as error:
        text = f"{program.target}: {error.strerror}\n"
        return Report(ending=Ending(exit_code=127, error="OSError", message=text, traceback=text))


def seed_generators() -> None:
    """Seed the global generators of NumPy and torch in this worker, as each fresh interpreter does.

    Python's own `random` does this after a fork by itself, and devices' generators start with their context.
    """
    numpy_random, torch = (sys.modules.get(name) for name in ("numpy.random", "torch"))
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()
