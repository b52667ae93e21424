"""Starts the workers of a script that calls `torch.multiprocessing.spawn`, as those of any other script.

The script runs once. Where it calls `spawn`, a hook forks the workers: each is watched, clocked and compared
like a worker that samestep has started itself, and the ranks meet at a free port, whatever address the script
sets.
"""

import atexit
import os
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.launch.local.call_workers import report_of, started_workers
from samestep.launch.local.child import Start
from samestep.launch.local.failure import Failure, root_cause
from samestep.launch.local.forking import forget_parent, fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import Ending
from samestep.launch.local.programs import Around, Watch, seed_generators
from samestep.launch.local.worker_report import Report, ReportPipe
from samestep.ranks.world.torch_rendezvous import prepare_groups

_DEPTH = 4
"""Depth of nested arguments in which tensors are searched."""


def with_own_workers(
    run: Callable[[], Ending],
    *,
    asked: int | None,
    around: Around,
    watch: Callable[[int], Watch],
    needs_fork: str = "",
) -> Ending:
    """Run a script, and start the workers that it spawns.

    Args:
        run: runs the script.
        asked: number of workers that the user has asked for; None for as many as the script spawns.
        around: runs a worker's function in the contexts of a worker.
        watch: returns the function that runs and watches one of that many workers.
        needs_fork: an option that workers have only if samestep forks them; empty for none.
    """
    calls = 0

    def spawned(
        original: Callable[..., Any],
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        daemon: bool = False,  # noqa: FBT001, FBT002
        start_method: str = "spawn",
    ) -> Any:
        nonlocal calls
        calls += 1
        _check_number(nprocs, asked)
        if not _can_fork():
            _refuse_or_log(needs_fork)
            return original(fn, args, nprocs, join, daemon, start_method)
        share_tensors(args)
        workers = SpawnedWorkers(fn, args, nprocs, around=around, watch=watch(nprocs))
        if not join:
            return workers
        while not workers.join():
            pass
        return None

    def trained_alone(*_: Any) -> None:
        if not calls and asked not in (None, 1):
            raise UsageError(
                f"the script trains without spawning workers, so -n {asked} has no effect. Give it the flag "
                "by which it uses several GPUs, or --mode autopilot to run it as a serial script."
            )

    hooks = dict.fromkeys(declarations.SPAWNED_WORKERS, wrapping(spawned))
    handle = register_optimizer_step_pre_hook(trained_alone)
    try:
        with attached_all(hooks):
            return run()
    finally:
        handle.remove()


def _check_number(found: int, asked: int | None) -> None:
    """Refuse a script that spawns another number of workers than the user has asked for."""
    if asked is None or found == asked:
        return
    hint = f"give -n {found}" if found else "give --device cpu on a machine without GPUs"
    raise UsageError(
        f"the script spawns {found} workers, and -n {asked} was given: {hint}, or give the number by a flag "
        f"of the script (samestep run -n {asked} train.py --gpus {{n}})."
    )


def _can_fork() -> bool:
    """Return whether forked workers can compute; a query of CUDA's driver can forbid it without a trace."""
    if not (fork_is_safe() and release_compute_threads()):
        return False
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return True
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))  # noqa: SLF001 - no public spelling
    return os.waitpid(pid, 0)[1] == 0


def _refuse_or_log(needs_fork: str) -> None:
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    why = f"threads run: {', '.join(threads)}" if threads else "a device is in use"
    if needs_fork:
        raise UsageError(f"{needs_fork} needs forked workers, and the script cannot be forked ({why}).")
    log(f"torch spawns the workers, which are not watched: the script cannot be forked ({why})")


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
        around: runs the function in the contexts of a worker.
        watch: runs and watches a worker.
    """

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], count: int, *, around: Around, watch: Watch
    ) -> None:
        def entry(start: Start, pipe: ReportPipe) -> Report:
            forget_parent()
            seed_generators()
            prepare_groups((start.variables["MASTER_ADDR"], int(start.variables["MASTER_PORT"])))

            def run() -> Ending:
                return report_of(partial(fn, start.place.rank, *args)).ending

            return Report(ending=watch(partial(around, run), pipe.send_provisional))

        with ExitStack() as stack:
            self._workers = stack.enter_context(started_workers(entry, count))
            self._undo = stack.pop_all()
        atexit.register(self._wait)  # torch's processes are waited for at the end of the script

    @property
    def processes(self) -> "list[SpawnedProcess]":
        """The workers, in the order of their ranks."""
        return [SpawnedProcess(self, rank) for rank in range(len(self._workers.all))]

    def pids(self) -> list[int]:
        """Return the process IDs of all workers."""
        return [worker.pid for worker in self._workers.all]

    def exit_code(self, rank: int) -> int | None:
        """Return the exit code of a worker; None while it runs."""
        return self._workers.all[rank].exit_code

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
        failures = list(workers.failures)
        atexit.unregister(self._wait)
        self._undo.close()
        if failures:
            self._raise(root_cause(failures))
        return True

    def _raise(self, cause: Failure) -> NoReturn:
        if cause.error == UsageError.__name__:
            raise UsageError(cause.message)
        text = f"{cause.describe(len(self._workers.all))}\n{cause.traceback}".rstrip()
        if cause.error:
            raise ProcessRaisedException(text, cause.rank, cause.pid)
        raise ProcessExitedException(text, cause.rank, cause.pid, cause.exit_code)

    def _wait(self) -> None:
        while not self.join():
            pass


@dataclass(frozen=True, slots=True)
class SpawnedProcess:
    """A worker, with the common methods of `multiprocessing.Process`."""

    context: SpawnedWorkers
    rank: int

    @property
    def pid(self) -> int:
        """The process ID."""
        return self.context.pids()[self.rank]

    @property
    def exitcode(self) -> int | None:
        """The exit code; None while it runs."""
        return self.context.exit_code(self.rank)

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
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
