"""Runs all workers of a job on this node, forked from this process."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from samestep.base import env
from samestep.base.place import Place
from samestep.launch.job import STDERR, STDOUT, Job
from samestep.launch.local import output
from samestep.launch.local.child import Entry, Start
from samestep.launch.local.descriptors import ensure_standard
from samestep.launch.local.orphans import adopt_orphans
from samestep.launch.local.restarts import Restarts, pause
from samestep.launch.local.supervisor import Outcome, signals_noted, supervise
from samestep.launch.local.worker_variables import Round, worker_variables
from samestep.launch.local.workers import Workers
from samestep.ranks.rendezvous.gloo_interface import loopback_only
from samestep.ranks.rendezvous.job_secret import shared_secret

LOOPBACK = "127.0.0.1"

Tell = Callable[[Outcome, Restarts], None]
"""Function that receives the outcome of a round, and the restarts that are left."""


def run(job: Job, entry: Entry, *, local: int, tell: Tell, alone: bool = False) -> Outcome:
    """Run `job` on `local` workers to its end, and restart them after a failure if the job allows it.

    Args:
        job: the job to run.
        entry: function that each worker runs; see `entry_of`.
        local: number of workers.
        tell: called with the outcome of each round.
        alone: whether to start the one worker without a launcher's variables: it starts the others itself.
    """
    ensure_standard()
    adopt_orphans()
    restarts = Restarts(job.max_restarts)
    with signals_noted() as signals, shared_secret() as secret:
        own = secret.variables | loopback_only(env.snapshot())
        while True:
            with (
                reserved_port() as holder,
                Workers(
                    wakeup=signals.wakeup, private=[*signals.files, holder.fileno(), secret.file]
                ) as workers,
            ):
                this = Round(
                    run_id=job.run_id,
                    restarts=restarts.done,
                    max_restarts=job.max_restarts,
                    master=holder.getsockname(),
                    role=job.role,
                )
                workers.start(
                    [] if signals.received else starts(job, places(local), this, own=own, alone=alone), entry
                )
                outcome = supervise(workers, signals, job)
            if outcome.cause is not None:
                restarts.fail(outcome.cause, workers.last_step)
            tell(outcome, restarts)
            if outcome.cause is None or outcome.put_off or not restarts.left:
                return outcome
            pause(restarts.pause_s, end=lambda: bool(signals.received))
            if signals.received:
                return Outcome(interrupted_by=signals.received[0])
            restarts.again()


def starts(
    job: Job, here: list[Place], this: Round, *, own: Mapping[str, str], alone: bool = False
) -> list[Start]:
    """Return the place, variables and streams of each worker of this node.

    Args:
        job: the job to run.
        here: the places of the workers.
        this: the round.
        own: variables of this run besides torchrun's.
        alone: whether to set no variables at all.
    """
    return [
        Start(
            place=place,
            variables={} if alone else worker_variables(place, this) | dict(own),
            streams=_streams(job, place, this.restarts),
        )
        for place in here
    ]


def places(local: int, *, node: int = 0, nodes: int = 1) -> list[Place]:
    """Return the places of this node's workers, if all nodes have equally many."""
    return [
        Place(
            rank=node * local + local_rank,
            size=nodes * local,
            local_rank=local_rank,
            local_size=local,
            node=node,
            nodes=nodes,
            launcher="samestep",
        )
        for local_rank in range(local)
    ]


@contextmanager
def reserved_port() -> Iterator[socket.socket]:
    """Reserve a free port of this host for rank 0's store, so that no other process gets it before.

    The kernel gives the port of a socket that is bound, though not listening, to no other socket, except to
    one that allows sharing the address (as torch's store does). Each round has a separate port, and so a
    separate store: keys of a dead round would mislead the next.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, 0))
        yield holder


def _streams(job: Job, place: Place, restarts: int) -> list[output.Stream]:
    folder = output.log_folder(job.logs, job.run_id, restarts=restarts, local_rank=place.local_rank)
    routes = {
        number: output.route(job.logs, folder, stream=number, rank=place.rank, local_rank=place.local_rank)
        for number in (STDOUT, STDERR)
    }
    return [output.Stream(number, target) for number, target in routes.items() if target != output.Route()]
