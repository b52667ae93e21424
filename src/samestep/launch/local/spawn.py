"""Runs a function on N workers of this host (``samestep.spawn``), like ``torch.multiprocessing.spawn``.

The kind of the workers depends on this process:

========================================= ===========================================================
this process                              the workers
========================================= ===========================================================
Linux, no device context, no threads      forked: torch is imported once; any function, any arguments
a script that cannot be forked            fresh interpreters: function and arguments are pickled
a notebook or prompt that cannot          threads of this process, on the CPU
========================================= ===========================================================
"""

import multiprocessing.spawn
import os
import pickle
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, TypeVar

from samestep.base import env
from samestep.base.console import open_standard_streams
from samestep.base.errors import UsageError, WorkerFailed
from samestep.base.folders import temporary_directory
from samestep.base.machine.description import number_of_workers
from samestep.base.units import counted
from samestep.launch.local.child import Entry, Report, ReportPipe, Start, interpreter
from samestep.launch.local.forking import forget_parent, fork_is_safe, release_compute_threads
from samestep.launch.local.hosting import Ending, ending_of, exited, leave
from samestep.launch.local.local_backend import Round, places, worker_variables
from samestep.launch.local.output import withdraw
from samestep.launch.local.workers import Workers
from samestep.launchers.detect import Detected
from samestep.launchers.detect_task import detect_task
from samestep.launchers.registry import SAMESTEP
from samestep.ranks.rendezvous.endpoint import rendezvous_endpoint, reserved_port
from samestep.ranks.rendezvous.job_secret import job_key, shared_secret
from samestep.ranks.world.thread_world import run_ranks

T = TypeVar("T")
_START = "from samestep.launch.local.spawn import main; main({payload}, {pipe})"
Call: TypeAlias = Callable[[Callable[..., Any], Sequence[Any]], Report]


def spawn(fn: Callable[..., T], n: int, *args: Any) -> list[T]:
    """Run ``fn(world, *args)`` on `n` workers of this host; return their results in rank order.

    Each worker has joined the others: `world` is its World, which is also the default of the public
    functions. Results must be picklable. Where a launcher has started one process on each of several nodes,
    `n` workers start on each, all are one world, and each process gets the results of its own workers.

    Args:
        fn: function that each worker calls once.
        n: number of workers.
        args: arguments of `fn` after the world.

    Raises:
        WorkerFailed: a worker failed; the message has the traceback of the first. The others are stopped.
        UsageError: `n` is no integer of 1 or more, or more than the memory can hold; or a launcher has
            started several processes on a node.
        DetectionError: the first of several nodes is unknown.
        PeerLost: another node did not arrive.

    Example:
        >>> def total(world, start):
        ...     return world.sum(start + world.place.rank)
        >>> spawn(total, 2, 10)  # doctest: +SKIP
        [21.0, 21.0]
    """
    n = number_of_workers(n, f"samestep.spawn({getattr(fn, '__name__', fn)}, {n!r})")
    node = _node_of_several()
    if fork_is_safe() and release_compute_threads():
        return _in_processes(_forked_entry(fn, args), n, node)
    if node is None and _is_interactive():
        return run_ranks(fn, n, *args)
    with _fresh_entry(call, fn, args) as entry:
        return _in_processes(entry, n, node)


def _node_of_several() -> Detected | None:
    """Return the place of this process if a launcher has started one on each of several nodes; else None.

    Raises:
        UsageError: a launcher has started several processes on a node.
    """
    task = detect_task(env.snapshot())
    place = task.place
    if place.size > 1 and place.nodes == place.size:
        return task
    if place.size > 1 and task.launcher != SAMESTEP.name:  # a worker of samestep may start others
        raise UsageError(
            f"{task.launcher} has started {place.size} tasks on {counted(place.nodes, 'node')}, and each "
            "would spawn workers of its own. Start one task on each node, or call samestep.join in place of "
            "samestep.spawn."
        )
    return None


def call(fn: Callable[..., Any], args: Sequence[Any]) -> Report:
    """Join the other workers and call `fn`; called in a worker whose variables are set."""
    from samestep.ranks.world.join import join

    def joined() -> Any:
        with join() as world:
            return fn(world, *args)

    return report_of(joined)


def _forked_entry(fn: Callable[..., Any], args: Sequence[Any]) -> Entry:
    def entry(_start: Start, _pipe: ReportPipe) -> Report:
        forget_parent()
        return call(fn, args)

    return entry


def _in_processes(entry: Entry, n: int, node: Detected | None) -> list[Any]:
    open_standard_streams()
    size = n if node is None else n * node.place.nodes
    with started_workers(entry, n, variables={"SAMESTEP_BANNER": "0"}, node=node) as workers:
        while workers.running and not workers.failures:
            workers.wait()
        workers.await_cause()
        if workers.failures:
            cause = workers.cause()
            raise WorkerFailed(f"{cause.describe(size)}\n{cause.traceback}".rstrip(), exit_code=cause.code)
    return [_result(worker.report, worker.start.place.rank, size) for worker in workers.all]


def _result(report: Report | None, rank: int, size: int) -> Any:
    if report is None:
        raise WorkerFailed(f"rank {rank} of {size} ended without a result: something in it called os._exit.")
    return report.result


def _is_interactive() -> bool:
    return not hasattr(sys.modules["__main__"], "__file__")


@contextmanager
def _fresh_entry(call: Call, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[Entry]:
    """Yield an entry that replaces the worker by a fresh interpreter, which runs ``call(fn, args)``.

    Raises:
        UsageError: function or arguments cannot be pickled.
    """
    with tempfile.TemporaryFile(dir=temporary_directory()) as payload:
        # multiprocessing passes this to a spawned child: path, argv, and how to import __main__ again.
        preparation = multiprocessing.spawn.get_preparation_data("samestep")
        del preparation["authkey"]  # a secret, which cannot be pickled
        try:
            for part in (preparation, (call, fn, args)):
                payload.write(pickle.dumps(part))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"this process cannot be forked (a device is in use, or threads run), and {fn!r} with its "
                f"arguments cannot be pickled for fresh ones: {error}. Use a module's top-level function."
            ) from error
        payload.flush()

        def entry(_start: Start, pipe: ReportPipe) -> Report:
            # Each worker opens the file again, so that it has a separate offset.
            opened = os.open(f"/proc/self/fd/{payload.fileno()}", os.O_RDONLY)
            for fd in (opened, pipe.fd):
                os.set_inheritable(fd, True)  # noqa: FBT003 - no keyword there
            withdraw()
            start = _START.format(payload=opened, pipe=pipe.fd)
            os.execv(sys.executable, [*interpreter(), "-c", start])  # noqa: S606

        yield entry


def main(payload: int, pipe: int) -> None:
    """Run the fresh worker: import the parent's ``__main__``, call the function, report and exit."""
    reports = ReportPipe.of(pipe)
    with os.fdopen(payload, "rb") as file:
        multiprocessing.spawn.prepare(pickle.load(file))  # noqa: S301 - our own parent's
        call, fn, args = pickle.load(file)  # noqa: S301
    report: Report = call(fn, args)
    reports.send(report)
    leave(report.ending.exit_code)


@contextmanager
def started_workers(
    entry: Entry, count: int, *, variables: Mapping[str, str] | None = None, node: Detected | None = None
) -> Iterator[Workers]:
    """Fork `count` workers, which connect at a free port with a secret; the end of the block ends them.

    `node` is the place of this process among those that start as many workers, one on each node; None for
    workers of this process alone.

    Raises:
        DetectionError: the address of the first of several nodes is unknown.
        PeerLost: another node did not arrive.
    """
    with ExitStack() as stack:
        if node is None:
            holder = stack.enter_context(reserved_port())
            private, master, here = [holder.fileno()], holder.getsockname(), places(count)
            secret = stack.enter_context(shared_secret())
        else:
            private, master = [], stack.enter_context(rendezvous_endpoint(node))
            here = places(count, node=node.place.node, nodes=node.place.nodes)
            secret = stack.enter_context(shared_secret(job_key(env.snapshot(), "called workers")))
        workers = stack.enter_context(Workers(private=[*private, secret.file]))
        run_id = uuid.uuid4().hex[:8] if node is None else node.job or "none"
        this = Round(run_id=run_id, restarts=0, max_restarts=0, master=master)
        further = {**secret.variables, **(variables or {})}
        workers.start(
            [Start(place=place, variables=worker_variables(place, this) | further) for place in here], entry
        )
        yield workers


def report_of(call: Callable[[], Any]) -> Report:
    """Call a worker's function, and report its result and how it ended."""
    try:
        result = call()
    except SystemExit as stop:
        return Report(ending=exited(stop))
    except BaseException as error:  # noqa: BLE001 - raised again in the parent
        return Report(ending=ending_of(error))
    return Report(ending=Ending(), result=result)
