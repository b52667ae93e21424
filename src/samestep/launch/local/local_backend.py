"""Runs all workers of a job on this node, forked from this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samestep.base import env
from samestep.base.console import open_standard_streams
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.launch.job import STDERR, STDOUT, Job
from samestep.launch.local import output
from samestep.launch.local.child import Entry, Start
from samestep.launch.local.orphans import adopt_orphans
from samestep.launch.local.restarts import Restarts
from samestep.launch.local.supervisor import Outcome, signals_noted, supervise
from samestep.launch.local.workers import Workers
from samestep.ranks.rendezvous.free_port import reserved_port
from samestep.ranks.rendezvous.gloo_interface import loopback_only
from samestep.ranks.rendezvous.job_secret import shared_secret

RoundEnd = Callable[[Outcome, Restarts], None]
"""Function that receives the outcome of a round, and the restarts that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Restart generation of all workers: their first start, or one after a failure."""

    run_id: str  # name of the run
    restarts: int  # rounds before this one
    max_restarts: int  # maximum number of rounds after the first
    master: tuple[str, int]  # host and port of this round's rendezvous
    store_is_served: bool = False  # whether the launcher already serves a store there; otherwise rank 0 does
    role: str = "default"  # the workers' role


def run(job: Job, entry: Entry, *, local: int, on_round_end: RoundEnd, alone: bool = False) -> Outcome:
    """Run `job` on `local` workers to its end, and restart them after a failure if the job allows it.

    Each worker runs `entry`. `on_round_end` receives the outcome of each round. A worker that starts the
    others itself is started `alone`, without a launcher's variables.
    """
    open_standard_streams()
    adopt_orphans()
    restarts = Restarts(job.max_restarts)
    with signals_noted() as signals, shared_secret() as secret:
        own = secret.variables | loopback_only(env.snapshot())
        while True:
            # Each round has a separate port, and so a separate store: keys of a dead round would mislead it.
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
                here = starts(job, places(local), this, own=own, alone=alone)
                workers.start(here, entry, received=signals.received)
                outcome = supervise(workers, signals, job)
            if outcome.cause is not None:
                restarts.fail(outcome.cause, workers.last_step)
            on_round_end(outcome, restarts)
            if outcome.cause is None or outcome.preempted or not restarts.left:
                return outcome
            holds_within(lambda: bool(signals.received), restarts.pause_s, most_s=0.1)
            if signals.received:
                return Outcome(interrupted_by=signals.received[0])
            restarts.again()


def starts(
    job: Job, here: list[Place], this: Round, *, own: Mapping[str, str], alone: bool = False
) -> list[Start]:
    """Return the place, variables and streams of each worker of this node.

    `own` are variables of this run besides torchrun's; with `alone`, none are set.
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


def _streams(job: Job, place: Place, restarts: int) -> list[output.Stream]:
    folder = output.log_folder(job.logs, job.run_id, restarts=restarts, local_rank=place.local_rank)
    routes = {
        number: output.route(job.logs, folder, stream=number, rank=place.rank, local_rank=place.local_rank)
        for number in (STDOUT, STDERR)
    }
    return [output.Stream(number, target) for number, target in routes.items() if target != output.Route()]


def place_variables(place: Place, master: tuple[str, int] | None) -> dict[str, str]:
    """Return those of torchrun's variables that give a worker its place, and the rendezvous if known."""
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
    }
    if master is not None:
        variables |= {"MASTER_ADDR": master[0], "MASTER_PORT": str(master[1])}
    return variables


def worker_variables(place: Place, this: Round) -> dict[str, str]:
    """Return all of torchrun's variables for the worker at `place`, and the one that identifies samestep.

    A worker that another launcher started has no agent of torch's kind, and no TORCHELASTIC_*.
    """
    return place_variables(place, this.master) | {
        "ROLE_NAME": this.role,
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.size),
        "TORCHELASTIC_RUN_ID": this.run_id,
        "SAMESTEP_RUN_ID": this.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(this.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(this.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(this.store_is_served),
    }
