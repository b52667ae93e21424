"""Runs a script that calls `torch.multiprocessing.spawn`, and starts its workers as those of other scripts.

The script runs once. Where it calls `spawn`, or starts a process for each rank, a hook forks the workers.
Each is watched, clocked and compared like a worker that samestep has started itself, and the ranks connect
at a free port, whatever address the script sets.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from samestep.base import env
from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.launch.local.child import Around, Watch, as_it_is, seed_generators
from samestep.launch.local.failure import Failure
from samestep.launch.local.forking import autograd_has_threads, fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import Ending, ending_of, exit_process
from samestep.launch.source.launcher_variables import VARIABLES_OF_TORCHRUN
from samestep.launchers.detect import Detected, detect
from samestep.run.decision import TRAINS_ALONE
from samestep.run.import_seeds import ImportSeeds
from samestep.run.spawned_workers import SpawnedWorkers, StartedProcesses, is_started_by_script, share_tensors


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
    found = detect(env.snapshot())  # before the script changes the variables
    script = _Script(how, found if found.place.nodes > 1 else None)
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


@dataclass(slots=True)
class _Script:
    """A script that spawns workers."""

    how: SpawnedRuns
    node: Detected | None
    """The place of this process among those that run the script on other nodes; None on one node."""
    started: list[SpawnedWorkers] = field(default_factory=list)
    calls: int = 0
    pid: int = field(default_factory=os.getpid)
    processes: StartedProcesses | None = None
    seeds: ImportSeeds = field(default_factory=ImportSeeds)

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
        share_tensors(args)
        workers = self._fork(fn, args, nprocs, is_checked=self.node is not None)
        if not join:
            return workers
        while not workers.join():
            pass
        return None

    def start_process(self, original: Callable[..., Any], process: BaseProcess) -> None:
        """Act for `Process.start`, in a script that starts one for each rank."""
        asked = self.how.asked
        if asked is None or os.getpid() != self.pid or not is_started_by_script():
            original(process)
            return
        self.calls += 1
        if not _can_fork():
            _refuse_or_log(f"-n {asked}")
        if self.processes is None:
            self.processes = StartedProcesses(
                asked, partial(self._fork, args=(), count=asked, is_checked=True)
            )
        self.processes.start(process)

    def _fork(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        count: int,
        *,
        is_checked: bool,
        inherits: bool = False,
    ) -> SpawnedWorkers:
        how = self.how
        is_recorded = bool(self.started) and how.has_steps(self.started[-1].ranks)
        watch, around = how.watch(count), how.again if is_recorded else how.around

        def seeded(run: Callable[[], Ending], report: Callable[[Ending], None]) -> Ending:
            if not inherits:
                how.seed()
                self.seeds.apply()
            return watch(partial(around, run), report)

        workers = SpawnedWorkers(
            fn,
            args,
            count,
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


def _check_number(found: int, asked: int | None, *, is_alone: bool) -> None:
    """Refuse a script that spawns another number of workers than the user has asked for."""
    if asked is None or found == asked:
        return
    if not is_alone:
        raise UsageError(
            f"the script spawns {found} workers on this node, and {asked} on each node were asked for. Give "
            "the number by a flag of the script (samestep run -n 4 train.py --gpus {local})."
        )
    hint = f"give -n {found}" if found else "give --device cpu on a machine without GPUs"
    raise UsageError(
        f"the script spawns {found} workers, and -n {asked} was given: {hint}, or give the number by a flag "
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
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))  # noqa: SLF001 - no public spelling
    if os.waitpid(pid, 0)[1] == 0:
        return True
    return torch._C._cuda_getDeviceCount() == 0  # noqa: SLF001 - the public one can be replaced for the script


def _refuse_or_log(needs_fork: str) -> None:
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    if threads:
        why = f"threads run: {', '.join(threads)}"
    else:
        why = "autograd has started threads" if autograd_has_threads() else "a device is in use"
    if needs_fork:
        raise UsageError(f"{needs_fork} needs forked workers, and the script cannot be forked ({why}).")
    log(f"torch spawns the workers, which are not watched: the script cannot be forked ({why})")
