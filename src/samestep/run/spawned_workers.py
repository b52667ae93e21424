"""Runs the workers that a script spawns, by `torch.multiprocessing.spawn` or a process for each rank.

They have the methods of torch's own objects. If the script starts processes by hand, its `Process` objects
stay as they are; only the process behind each is another one. All of them are forked when the last one is
started.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from samestep.autopilot.files.file_calls import redirect_in_fork, unredirected
from samestep.base.errors import UsageError
from samestep.base.folders import PACKAGE
from samestep.launch.local.child import Report, ReportPipe, Start, Watch
from samestep.launch.local.failure import Failure
from samestep.launch.local.forking import forget_parent
from samestep.launch.local.hosting import Ending
from samestep.launch.local.spawn import report_of, started_workers
from samestep.launch.local.workers import Worker, pidfd
from samestep.launchers.detect import Detected
from samestep.ranks.hang.script_position import is_script
from samestep.ranks.world.torch_rendezvous import JobEndpoint, prepare_groups

_DEPTH = 4  # depth of nested arguments in which tensors are searched
_INSTALLED = ("site-packages", "dist-packages")


def share_tensors(value: Any, depth: int = 0) -> None:
    """Move the CPU tensors of a worker's arguments to shared memory, as torch does when it pickles them."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout == torch.strided:
            value.share_memory_()  # type: ignore[no-untyped-call]
    elif isinstance(value, torch.nn.Module):
        value.share_memory()
    elif depth < _DEPTH:
        parts = (
            value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        )
        fields = vars(value).values() if isinstance(value, SimpleNamespace | Namespace) else ()
        for part in (*parts, *fields):
            share_tensors(part, depth + 1)


class SpawnedWorkers:
    """The running workers of one call of `spawn`, with the methods of torch's `ProcessContext`.

    Args:
        fn: the function of each worker, whose first argument is the number of the worker.
        args: its further arguments.
        count: number of workers.
        watch: seeds a worker, runs the function in its contexts, and watches it.
        on_end: called when all have ended, with the cause if one has failed.
        node: the place of this process among those of other nodes that spawn as many; None on one node.
        is_checked: whether a process group of other ranks than the workers' is refused.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        count: int,
        *,
        watch: Watch,
        on_end: Callable[[Failure | None], None],
        node: Detected | None = None,
        is_checked: bool = False,
    ) -> None:
        self._on_end = on_end

        def entry(start: Start, pipe: ReportPipe) -> Report:
            redirect_in_fork()
            forget_parent()
            host, port = start.variables["MASTER_ADDR"], int(start.variables["MASTER_PORT"])
            prepare_groups(JobEndpoint(host, port, is_checked))

            def run() -> Ending:
                return report_of(partial(fn, start.place.local_rank, *args)).ending

            return Report(ending=watch(run, pipe.send_provisional))

        # The script's process may redirect files, but programs bind sockets in the folder of the workers.
        with unredirected(), ExitStack() as stack:
            self._workers = stack.enter_context(started_workers(entry, count, node=node))
            self._undo = stack.pop_all()
        atexit.register(self._wait)  # torch's processes are waited for at the end of the script

    @property
    def have_succeeded(self) -> bool:
        """Whether all have ended with exit code 0, also where `join` was not called yet."""
        return all(map(_has_succeeded, self._workers.all))

    @property
    def processes(self) -> "list[SpawnedProcess]":
        """The workers, in the order of their ranks."""
        return [SpawnedProcess(self, number) for number in range(len(self._workers.all))]

    @property
    def ranks(self) -> list[int]:
        """The ranks of the workers."""
        return [worker.start.place.rank for worker in self._workers.all]

    def pids(self) -> list[int]:
        """Return the process IDs of all workers."""
        return [worker.pid for worker in self._workers.all]

    def exit_code(self, number: int) -> int | None:
        """Return the exit code of a worker; None while it runs."""
        if self._workers.running:
            self._workers.wait(0)
        return self._workers.all[number].exit_code

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:  # noqa: ARG002
        """Wait for the next event of a worker; return whether all have ended well.

        Raises:
            ProcessRaisedException: a worker raised an exception; the others are stopped.
            ProcessExitedException: a worker ended without one, and with another exit code than 0.
            UsageError: samestep refused what a worker does.
        """
        workers = self._workers
        if workers.running and not workers.failures:
            workers.wait(timeout)
        if workers.running and not workers.failures:
            return False
        workers.await_cause()
        cause = workers.cause() if workers.failures else None
        self.close()
        self._on_end(cause)
        if cause is not None:
            self._raise(cause)
        return True

    def close(self) -> None:
        """End the workers that still run, and remove what was made for them."""
        atexit.unregister(self._wait)
        with unredirected():
            self._undo.close()

    def _raise(self, cause: Failure) -> NoReturn:
        if cause.error == UsageError.__name__:
            raise UsageError(cause.message)
        text = f"{cause.describe(self._workers.all[0].start.place.size)}\n{cause.traceback}".rstrip()
        if cause.error:
            raise ProcessRaisedException(text, cause.rank, cause.pid)
        raise ProcessExitedException(text, cause.rank, cause.pid, cause.exit_code)

    def _wait(self) -> None:
        while not self.join():
            pass


def _has_succeeded(worker: Worker) -> bool:
    """Return whether a worker has ended with exit code 0; nothing is changed, so a signal handler may ask."""
    try:
        ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # its exit code has been read
        return worker.exit_code == 0
    return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


@dataclass(frozen=True, slots=True)
class SpawnedProcess:
    """A worker, with the common methods of `multiprocessing.Process`."""

    context: SpawnedWorkers
    number: int

    @property
    def pid(self) -> int:
        """The process ID."""
        return self.context.pids()[self.number]

    @property
    def exitcode(self) -> int | None:
        """The exit code; None while it runs."""
        return self.context.exit_code(self.number)

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, or for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            self.context.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.is_alive():  # otherwise another process may have its number
            os.kill(self.pid, number)


def is_started_by_script() -> bool:
    """Return whether the function that calls this one was called by the script, and not by a library."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no public spelling
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return is_script(file) and not any(part in file for part in _INSTALLED)


@dataclass(slots=True)
class StartedProcesses:
    """The processes that a script has started, and the workers in their place."""

    size: int  # number of processes, one for each rank; they get their ranks in the order of their starts
    # forks as many workers, each of which calls a function with its rank; `inherits` is whether they keep the
    # states of this process's generators
    fork: Callable[..., SpawnedWorkers]
    processes: list[Any] = field(default_factory=list)
    workers: SpawnedWorkers | None = None

    def start(self, process: BaseProcess) -> None:
        """Act for `Process.start`.

        Raises:
            UsageError: as many processes as were asked for have been started already.
        """
        if self.workers is not None:
            self.workers.close()
            raise UsageError(f"the script starts more than {self.size} processes, and {_remedy(self.size)}")
        started: Any = process
        share_tensors((started._args, started._kwargs))  # noqa: SLF001 - as pickled by torch
        started._popen = _Worker(self, len(self.processes))  # noqa: SLF001
        self.processes.append(process)
        if len(self.processes) == self.size:
            method = started._start_method or multiprocessing.get_start_method()  # noqa: SLF001
            self.workers = self.fork(lambda rank: self.processes[rank].run(), inherits=method == "fork")
            for one, pid in zip(self.processes, self.workers.pids(), strict=True):
                one._sentinel = pidfd(pid)  # noqa: SLF001 - as `Process.start` sets it

    def worker(self, number: int) -> SpawnedProcess:
        """Return the worker behind a process.

        Raises:
            UsageError: fewer processes than were asked for have been started.
        """
        if self.workers is None:
            raise UsageError(
                f"the script waits for {len(self.processes)} processes, and {_remedy(self.size)}"
            )
        return SpawnedProcess(self.workers, number)


def _remedy(size: int) -> str:
    return (
        f"-n {size} was given. Give the number that it starts, or set it by a flag of the script "
        f"(samestep run -n {size} train.py --gpus {{n}})."
    )


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker in the place of a process, with the methods that a `Process` needs."""

    started: StartedProcesses
    number: int

    @property
    def pid(self) -> int:
        return self.started.worker(self.number).pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self, _: int = 0) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        worker = self.started.worker(self.number)
        worker.join(timeout)
        return worker.exitcode

    def terminate(self) -> None:
        self.started.worker(self.number).terminate()

    def kill(self) -> None:
        self.started.worker(self.number).kill()

    def close(self) -> None:
        sentinel = self.started.processes[self.number]._sentinel  # noqa: SLF001
        if sentinel is not None:
            os.close(sentinel)
