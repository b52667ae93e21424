"""Starts workers for one call in a program (`samestep.spawn`, torch's `spawn`), and reports how they end."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from samestep.launch.local.child import Entry, Start
from samestep.launch.local.hosting import Ending, ending_of, exited
from samestep.launch.local.local_backend import Round, places, worker_variables
from samestep.launch.local.worker_report import Report
from samestep.launch.local.workers import Workers
from samestep.ranks.rendezvous.free_port import reserved_port
from samestep.ranks.rendezvous.job_secret import shared_secret


@contextmanager
def started_workers(
    entry: Entry, count: int, *, variables: Mapping[str, str] | None = None
) -> Iterator[Workers]:
    """Fork `count` workers, which meet at a free port with a secret of their own; the block's end ends them.

    Args:
        entry: runs in each worker.
        count: number of workers.
        variables: further variables of their environment.
    """
    with (
        reserved_port() as holder,
        shared_secret() as secret,
        Workers(private=[holder.fileno(), secret.file]) as workers,
    ):
        this = Round(run_id=uuid.uuid4().hex[:8], restarts=0, max_restarts=0, master=holder.getsockname())
        own = {**secret.variables, **(variables or {})}
        workers.start(
            [Start(place=place, variables=worker_variables(place, this) | own) for place in places(count)],
            entry,
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
