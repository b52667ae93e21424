"""Replaces processes that a script starts by hand, one for each rank, by workers that samestep forks.

The script's `Process` objects stay as they are; only the process behind each is another one. All workers are
forked when the last one is started.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.folders import PACKAGE
from samestep.launch.local.workers import pidfd
from samestep.ranks.hang.script_position import is_script
from samestep.run.spawned_workers import SpawnedProcess, SpawnedWorkers, share_tensors

_INSTALLED = ("site-packages", "dist-packages")


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
