"""Starts workers for one call in a program (`samestep.spawn`, torch's `spawn`), and reports how they end."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from samestep.base import env
from samestep.launch.local.child import Entry, Start
from samestep.launch.local.hosting import Ending, ending_of, exited
from samestep.launch.local.local_backend import Round, places, worker_variables
from samestep.launch.local.worker_report import Report
from samestep.launch.local.workers import Workers
from samestep.launchers.detect import Detected
from samestep.ranks.rendezvous.free_port import rendezvous_endpoint, reserved_port
from samestep.ranks.rendezvous.job_secret import job_key, shared_secret


@contextmanager
def started_workers(
    entry: Entry,
    count: int,
    *,
    variables: Mapping[str, str] | None = None,
    node: Detected | None = None,
) -> Iterator[Workers]:
    """Fork `count` workers, which connect at a free port with a secret; the end of the block ends them.

    Args:
        entry: runs in each worker.
        count: number of workers.
        variables: further variables of their environment.
        node: the place of this process among those that start as many workers, one on each node; None for
            workers of this process alone.

    Raises:
        DetectionError: the address of the first of several nodes is unknown.
        PeerLost: another node did not arrive.
    """
    with ExitStack() as stack:
        if node is None:
            holder = stack.enter_context(reserved_port())
            own, master, here = [holder.fileno()], holder.getsockname(), places(count)
            secret = stack.enter_context(shared_secret())
        else:
            own, master = [], stack.enter_context(rendezvous_endpoint(node))
            here = places(count, node=node.place.node, nodes=node.place.nodes)
            secret = stack.enter_context(shared_secret(job_key(env.snapshot(), "called workers")))
        workers = stack.enter_context(Workers(private=[*own, secret.file]))
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
