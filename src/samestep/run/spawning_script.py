"""Runs a script that calls `torch.multiprocessing.spawn`, and starts its workers as those of other scripts.

The script runs once. Where it calls `spawn`, or starts a process for each rank, a hook forks the workers.
Each is watched, clocked and compared like a worker that samestep has started itself, and the ranks connect
at a free port, whatever address the script sets. The script's `Process` objects stay as they are, and what
`spawn` returns has the methods of torch's own object; only the process behind each is another one.

A process that torch spawns imports the script, so seeds outside of ``if __name__ == "__main__":`` are set in
each of them. A forked worker does not import it, and gets these seeds from here.
"""

import ast
import atexit
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samestep.autopilot.files.file_calls import redirect_in_fork, unredirected
from samestep.base import env
from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.base.folders import PACKAGE
from samestep.hooks import declarations
from samestep.hooks.object_graph import Parts, stored_in, walk
from samestep.hooks.registry import Hook, attached_all, wrapping
from samestep.launch.local.child import Around, Report, ReportPipe, Start, Watch, as_it_is, seed_generators
from samestep.launch.local.failure import Failure
from samestep.launch.local.forking import (
    autograd_has_threads,
    forget_parent,
    fork,
    fork_is_safe,
    release_compute_threads,
)
from samestep.launch.local.hosting import Ending, ending_of, exit_process
from samestep.launch.local.spawn import report_of, started_workers
from samestep.launch.local.workers import Worker, pidfd
from samestep.launch.source.launcher_variables import VARIABLES_OF_TORCHRUN
from samestep.launchers.detect import Detected, detect
from samestep.ranks.hang.script_position import is_script
from samestep.ranks.world.torch_rendezvous import JobEndpoint, prepare_groups
from samestep.run.decision import TRAINS_ALONE

_DEPTH = 4  # depth of nested arguments in which tensors are searched: a guess
_INSTALLED = ("site-packages", "dist-packages")
_STATES: dict[Hook, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    declarations.RANDOM_SEED: (random.getstate, random.setstate),
    declarations.NUMPY_SEED: (np.random.get_state, np.random.set_state),
    **dict.fromkeys(declarations.TORCH_MANUAL_SEEDS, (torch.get_rng_state, torch.set_rng_state)),
}
"""The functions that seed a global generator, with those that read and set its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnedRuns:
    """Settings of the workers that a script spawns."""

    # number of workers of a node that the user has asked for; None for as many as the script spawns
    asked: int | None
    around: Around  # runs a worker's function in the contexts of a worker
    watch: Callable[[int], Watch]  # returns the function that runs and watches one of that many workers
    needs_fork: str = ""  # an option that workers have only if samestep forks them; empty for none
    must_spawn: bool = False  # whether a script that trains in its own process ends with `TRAINS_ALONE`
    again: Around = as_it_is  # runs it after a call whose steps were recorded
    # returns whether the workers of these ranks, of an earlier call, have recorded steps
    has_steps: Callable[[Sequence[int]], bool] = lambda _: False
    # returns whether the worker of this rank was ended after its last recorded step. The script then ends
    # too, since it may use the results of a complete training
    was_stopped: Callable[[int], bool] | None = None
    on_failure: Callable[[Failure], object] = lambda _: None  # called with the cause if a worker has failed
    # seeds the global generators of a worker; seeds that the script sets at its import follow
    seed: Callable[[], None] = seed_generators


def with_own_workers(run: Callable[[], Ending], how: SpawnedRuns) -> Ending:
    """Run a script, and start the workers that it spawns."""
    # Otherwise a query of the CUDA driver in the script forbids to fork its workers.
    env.export({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    detected = detect(env.snapshot())  # before the script changes the variables
    script = _Script(how, detected if detected.place.nodes > 1 else None)
    hooks = {
        **dict.fromkeys(declarations.SPAWNED_WORKERS, wrapping(script.spawn)),
        declarations.STARTED_BY_HAND: wrapping(script.start_process),
    }
    handle = register_optimizer_step_pre_hook(script.before_step)
    before = signal.getsignal(signal.SIGCHLD)
    if how.was_stopped is not None:  # the script may wait for a result that does not come
        signal.signal(signal.SIGCHLD, script.after_child)
    try:
        with attached_all(hooks), script.seeds.attached():
            return script.explained(run())
    finally:
        if how.was_stopped is not None:
            signal.signal(signal.SIGCHLD, before)
        handle.remove()


def _share_tensors(arguments: Any) -> None:
    """Move the CPU tensors of a worker's arguments to shared memory, as torch does when it pickles them."""
    for _, value in walk([((0, ""), arguments)], _parts, depth=_DEPTH):
        if isinstance(value, torch.nn.Module):
            value.share_memory()
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided:
            value.share_memory_()  # type: ignore[no-untyped-call]


def _parts(value: Any) -> Parts:
    return [] if isinstance(value, (torch.Tensor, torch.nn.Module)) else stored_in(value)


class _SpawnedWorkers:
    """The running workers of one call of `spawn`, with the methods of torch's `ProcessContext`.

    Args:
        fn: the function of each worker, whose first argument is the number of the worker.
        args: its further arguments.
        names: name of each worker's process.
        watch: seeds a worker, runs the function in its contexts, and watches it.
        on_end: called when all have ended, with the cause if one has failed.
        node: the place of this process among those of other nodes that spawn as many; None on one node.
        is_checked: whether a process group of other ranks than the workers' is refused.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        names: Sequence[str],
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
            multiprocessing.current_process().name = names[start.place.local_rank]  # scripts ask for it
            host, port = start.variables["MASTER_ADDR"], int(start.variables["MASTER_PORT"])
            prepare_groups(JobEndpoint(host, port, is_checked))

            def run() -> Ending:
                return report_of(partial(fn, start.place.local_rank, *args)).ending

            return Report(ending=watch(run, pipe.send_provisional))

        # The script's process may redirect files, but programs bind sockets in the folder of the workers.
        with unredirected(), ExitStack() as stack:
            self._workers = stack.enter_context(started_workers(entry, len(names), node=node))
            self._undo = stack.pop_all()
        atexit.register(self._wait)  # torch's processes are waited for at the end of the script

    @property
    def have_succeeded(self) -> bool:
        """Whether all have ended with exit code 0, also where `join` was not called yet."""
        return all(map(_has_succeeded, self._workers.all))

    @property
    def processes(self) -> "list[_SpawnedProcess]":
        """The workers, in the order of their ranks."""
        return [_SpawnedProcess(self, number) for number in range(len(self._workers.all))]

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
class _SpawnedProcess:
    """A worker, with the common methods of `multiprocessing.Process`."""

    context: _SpawnedWorkers
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


def _is_started_by_script() -> bool:
    """Return whether the function that calls this one was called by the script, and not by a library."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no public spelling
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return is_script(file) and not any(part in file for part in _INSTALLED)


@dataclass(slots=True)
class _StartedProcesses:
    """The processes that a script has started, and the workers in their place."""

    size: int  # number of processes, one for each rank; they get their ranks in the order of their starts
    # forks workers with these names, each of which calls a function with its rank; `inherits` is whether they
    # keep the states of this process's generators
    fork: Callable[..., _SpawnedWorkers]
    processes: list[Any] = field(default_factory=list)
    workers: _SpawnedWorkers | None = None

    @property
    def have_succeeded(self) -> bool:
        """Whether all have been started, and have ended with exit code 0."""
        return self.workers is not None and self.workers.have_succeeded

    def start(self, process: BaseProcess) -> None:
        """Act for `Process.start`.

        Raises:
            UsageError: as many processes as were asked for have been started already.
        """
        if self.workers is not None:
            self.workers.close()
            raise UsageError(
                f"the script starts more than {self.size} processes, and {_number_remedy(self.size)}"
            )
        started: Any = process
        method = started._start_method or multiprocessing.get_start_method()  # noqa: SLF001
        if method != "fork":  # otherwise they are not pickled
            _share_tensors((started._args, started._kwargs))  # noqa: SLF001
        # This and `_sentinel` are what `Process.start`, which is replaced, sets: the state of the object.
        started._popen = _WorkerAsPopen(self, len(self.processes))  # noqa: SLF001
        self.processes.append(process)
        if len(self.processes) == self.size:
            names = [waiting.name for waiting in self.processes]
            self.workers = self.fork(
                lambda rank: self.processes[rank].run(), names=names, inherits=method == "fork"
            )
            for waiting, pid in zip(self.processes, self.workers.pids(), strict=True):
                waiting._sentinel = pidfd(pid)  # noqa: SLF001

    def worker(self, number: int) -> _SpawnedProcess:
        """Return the worker behind a process.

        Raises:
            UsageError: fewer processes than were asked for have been started.
        """
        if self.workers is None:
            raise UsageError(
                f"the script waits for {len(self.processes)} processes, and {_number_remedy(self.size)}"
            )
        return _SpawnedProcess(self.workers, number)


def _number_remedy(size: int) -> str:
    return (
        f"-n {size} was given. Give the number that it starts, or set it by a flag of the script "
        f"(samestep run -n {size} train.py --gpus {{n}})."
    )


@dataclass(frozen=True, slots=True)
class _WorkerAsPopen:
    """A worker in the place of a process, with the methods that a `Process` needs."""

    started: _StartedProcesses
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


@dataclass(slots=True)
class _ImportSeeds:
    """The states of global generators after the seeds that a script has set where it is imported."""

    _states: dict[Callable[[Any], Any], Any] = field(default_factory=dict)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Record the seeds of the script that runs in a block."""
        with attached_all({hook: wrapping(partial(self._seeded, *how)) for hook, how in _STATES.items()}):
            yield

    def apply(self) -> None:
        """Set the recorded states in a worker."""
        for restore, state in self._states.items():
            restore(state)

    def _seeded(
        self,
        state: Callable[[], Any],
        restore: Callable[[Any], Any],
        original: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = original(*args, **kwargs)
        if _is_import():
            self._states[restore] = state()
        return result


def _is_import() -> bool:
    """Return whether a spawned process would run the present line of the script too, as it imports it."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no public spelling
    while frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") != "__main__":
        if frame.f_back is None:
            return False
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    return file is not None and not any(frame.f_lineno in lines for lines in _guarded_lines(file))


@cache
def _guarded_lines(file: str) -> list[range]:
    """Return the lines of a script that run only where it is not imported."""
    return [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.parse(Path(file).read_bytes()).body
        if isinstance(node, ast.If)
        and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
    ]


@dataclass(slots=True)
class _Script:
    """A script that spawns workers."""

    how: SpawnedRuns
    node: Detected | None
    """The place of this process among those that run the script on other nodes; None on one node."""
    started: list[_SpawnedWorkers] = field(default_factory=list)
    calls: int = 0
    pid: int = field(default_factory=os.getpid)
    processes: _StartedProcesses | None = None
    seeds: _ImportSeeds = field(default_factory=_ImportSeeds)

    def spawn(
        self,
        original: Callable[..., Any],
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        daemon: bool = False,  # noqa: FBT001, FBT002
        start_method: str = "spawn",
    ) -> Any:
        """Act for `torch.multiprocessing.spawn`."""
        how = self.how
        if os.getpid() != self.pid:  # a worker, or another process of the script
            return original(fn, args, nprocs, join, daemon, start_method)
        self.calls += 1
        _check_number(nprocs, how.asked, is_alone=self.node is None)
        if nprocs == 0:  # torch does nothing
            return original(fn, args, nprocs, join, daemon, start_method)
        if not _can_fork():
            _refuse_or_log(how.needs_fork or ("A run on several nodes" if self.node else ""))
            return original(fn, args, nprocs, join, daemon, start_method)
        _share_tensors(args)
        context: Any = multiprocessing.get_context(start_method)
        names = [context.Process().name for _ in range(nprocs)]
        workers = self._fork(fn, args, names, is_checked=self.node is not None)
        if not join:
            return workers
        while not workers.join():
            pass
        return None

    def start_process(self, original: Callable[..., Any], process: BaseProcess) -> None:
        """Act for `Process.start`, in a script that starts one for each rank."""
        asked = self.how.asked
        if asked is None or os.getpid() != self.pid or not _is_started_by_script():
            original(process)
            return
        self.calls += 1
        if not _can_fork():
            _refuse_or_log(f"-n {asked}")
        if self.processes is None or self.processes.have_succeeded:  # it may start as many again
            self.processes = _StartedProcesses(asked, partial(self._fork, args=(), is_checked=True))
        self.processes.start(process)

    def _fork(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        names: Sequence[str],
        *,
        is_checked: bool,
        inherits: bool = False,
    ) -> _SpawnedWorkers:
        how = self.how
        is_recorded = bool(self.started) and how.has_steps(self.started[-1].ranks)
        watch, around = how.watch(len(names)), how.again if is_recorded else how.around

        def seeded(run: Callable[[], Ending], report: Callable[[Ending], None]) -> Ending:
            if not inherits:
                how.seed()
                self.seeds.apply()
            return watch(partial(around, run), report)

        workers = _SpawnedWorkers(
            fn,
            args,
            names,
            watch=seeded,
            on_end=self._ended,
            node=self.node,
            is_checked=is_checked,
        )
        self.started.append(workers)
        return workers

    def before_step(self, *_: Any) -> None:
        """Refuse to train in the script's process where workers were asked for."""
        if self.calls:
            return
        if self.how.asked not in (None, 1):
            raise UsageError(
                f"the script trains without spawning workers, so -n {self.how.asked} has no effect. Give it "
                "the flag by which it uses several GPUs, or --mode autopilot to run it as a serial script."
            )
        if self.how.must_spawn:
            raise UsageError(TRAINS_ALONE)

    def explained(self, ending: Ending) -> Ending:
        """Return how the script ended, as a wrong start if it has asked for a launcher's variable."""
        name = ending.message.strip("'")
        if self.calls or ending.error != KeyError.__name__ or name not in VARIABLES_OF_TORCHRUN:
            return ending
        refused = UsageError(
            f"the script reads {name}, which a launcher sets, and has spawned no worker. Give --mode native "
            "to start it once for each worker, or give it the flag by which it spawns them."
        )
        return ending_of(UsageError(TRAINS_ALONE) if self.how.must_spawn else refused)

    def after_child(self, *_: Any) -> None:
        """End the script if its workers have ended after their last recorded step; handles SIGCHLD."""
        if self.started and self.started[-1].have_succeeded:
            self._leave_if_stopped()

    def _ended(self, cause: Failure | None) -> None:
        if cause is not None:
            self.how.on_failure(cause)
        else:
            self._leave_if_stopped()

    def _leave_if_stopped(self) -> None:
        workers = self.started[-1]
        if self.how.was_stopped is None or not any(map(self.how.was_stopped, workers.ranks)):
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(Exception):  # what the handler has interrupted may have been in the middle of it
            workers.close()
            for child in multiprocessing.active_children():
                child.terminate()
        exit_process()


def _check_number(count: int, asked: int | None, *, is_alone: bool) -> None:
    """Refuse a script that spawns another number of workers than the user has asked for."""
    if asked is None or count == asked:
        return
    if not is_alone:
        raise UsageError(
            f"the script spawns {count} workers on this node, and {asked} on each node were asked for. Give "
            "the number by a flag of the script (samestep run -n 4 train.py --gpus {local})."
        )
    hint = f"give -n {count}" if count else "give --device cpu on a machine without GPUs"
    raise UsageError(
        f"the script spawns {count} workers, and -n {asked} was given: {hint}, or give the number by a flag "
        f"of the script (samestep run -n {asked} train.py --gpus {{n}})."
    )


def _can_fork() -> bool:
    """Return whether forked workers can compute; a query of CUDA's driver can forbid it without a trace.

    A query that finds no GPU leaves the same mark, which then forbids nothing that workers use.
    """
    if not (fork_is_safe() and release_compute_threads()):
        return False
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return True
    pid = fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))  # noqa: SLF001 - no public spelling
    if os.waitpid(pid, 0)[1] == 0:
        return True
    return torch._C._cuda_getDeviceCount() == 0  # noqa: SLF001 - the public one can be replaced for the script


def _refuse_or_log(needs_fork: str) -> None:
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        why = f"threads run: {', '.join(threads)}"
    else:
        why = "autograd has started threads" if autograd_has_threads() else "a device is in use"
    if needs_fork:
        raise UsageError(f"{needs_fork} needs forked workers, and the script cannot be forked ({why}).")
    log(f"torch spawns the workers, which are not watched: the script cannot be forked ({why})")
