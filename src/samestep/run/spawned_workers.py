"""Starts the workers of a script that calls `torch.multiprocessing.spawn`, as those of any other script.

The script runs once. Where it calls `spawn`, a hook forks the workers: each is watched, clocked and compared
like a worker that samestep has started itself, and the ranks meet at a free port, whatever address the script
sets.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch.multiprocessing.spawn import ProcessRaisedException

from samestep.base.console import log
from samestep.base.errors import UsageError
from samestep.hooks import declarations
from samestep.hooks.registry import attached_all, wrapping
from samestep.launch.local.child import Start
from samestep.launch.local.failure import root_cause
from samestep.launch.local.forking import forget_parent, fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import Ending, ending_of, exited
from samestep.launch.local.local_backend import Round, places, worker_variables
from samestep.launch.local.programs import Around, Watch, seed_generators
from samestep.launch.local.worker_report import Report, ReportPipe
from samestep.launch.local.workers import Workers
from samestep.ranks.rendezvous.free_port import reserved_port
from samestep.ranks.rendezvous.job_secret import shared_secret


def with_own_workers(
    run: Callable[[], Ending], *, asked: int | None, around: Around, watch: Callable[[int], Watch]
) -> Ending:
    """Run a script, and start the workers that it spawns.

    Args:
        run: runs the script.
        asked: number of workers that the user has asked for; None for as many as the script spawns.
        around: runs a worker's function in the contexts of a worker.
        watch: returns the function that runs and watches one of that many workers.
    """

    def spawned(
        original: Callable[..., Any],
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        daemon: bool = False,  # noqa: FBT001, FBT002
        start_method: str = "spawn",
    ) -> Any:
        if asked is not None and nprocs != asked:
            hint = "give --device cpu on a machine without GPUs" if not nprocs else f"give -n {nprocs}"
            raise UsageError(
                f"the script spawns {nprocs} workers, and -n {asked} was given: {hint}, or give the number "
                f"by a flag of the script (samestep run -n {asked} train.py --gpus {{n}})."
            )
        if not (fork_is_safe() and release_compute_threads()):
            log(
                "this process cannot be forked (a device is in use, or threads run): torch spawns the workers"
            )
            return original(fn, args, nprocs, join, daemon, start_method)
        workers = SpawnedWorkers(fn, args, nprocs, around=around, watch=watch(nprocs))
        if not join:
            return workers
        while not workers.join():
            pass
        return None

    hooks = dict.fromkeys(declarations.SPAWNED_WORKERS, wrapping(spawned))
    with attached_all(hooks):
        return run()


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
        self._undo, self._owner = ExitStack(), os.getpid()
        holder = self._undo.enter_context(reserved_port())
        secret = self._undo.enter_context(shared_secret())
        self._workers = self._undo.enter_context(Workers(private=[holder.fileno(), secret.file]))
        this = Round(run_id=uuid.uuid4().hex[:8], restarts=0, max_restarts=0, master=holder.getsockname())

        def entry(start: Start, pipe: ReportPipe) -> Report:
            forget_parent()
            seed_generators()
            _prepare(this.master)
            run = partial(_called, fn, start.place.rank, args)
            return Report(ending=watch(partial(around, run), pipe.send_provisional))

        self._workers.start(
            [
                Start(place=place, variables=worker_variables(place, this) | secret.variables)
                for place in places(count)
            ],
            entry,
        )

    def pids(self) -> list[int]:
        """Return the process IDs of all workers."""
        return [worker.pid for worker in self._workers.all]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:  # noqa: ARG002
        """Wait for the next event of a worker; return whether all have ended well.

        Raises:
            ProcessRaisedException: a worker failed; the others are stopped.
        """
        workers = self._workers
        if workers.running and not workers.failures:
            workers.wait(timeout)
        if workers.running and not workers.failures:
            return False
        workers.await_cause()
        failures = list(workers.failures)
        self._undo.close()
        if failures:
            cause = root_cause(failures)
            text = f"{cause.describe(len(workers.all))}\n{cause.traceback}".rstrip()
            raise ProcessRaisedException(text, cause.rank, workers.all[cause.rank].pid)
        return True


def _prepare(master: tuple[str, int]) -> None:
    """Let the script's process groups meet at `master`, and outlive their reducers."""
    from samestep.ranks.world.ddp_groups import keep_groups_of_reducers
    from samestep.ranks.world.torch_rendezvous import protect_rendezvous

    protect_rendezvous(master)
    keep_groups_of_reducers()


def _called(fn: Callable[..., Any], rank: int, args: Sequence[Any]) -> Ending:
    """Call a worker's function, and return how it ended."""
    try:
        fn(rank, *args)
    except SystemExit as stop:
        return exited(stop)
    except BaseException as error:  # noqa: BLE001 - raised again in the script
        return ending_of(error)
    return Ending()
