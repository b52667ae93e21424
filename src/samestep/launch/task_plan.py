"""Detects the launcher, plans the job, and completes the plan by the rendezvous that the tasks agree on."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from samestep.base.env import Environment
from samestep.launch.job import Job
from samestep.launch.plan import Join, Plan, Spawn, endpoint, host_of, plan
from samestep.launchers.detect import UNLAUNCHED, Detected, detect
from samestep.launchers.lost_environment import refuse_copies
from samestep.launchers.mpi_hosts import introduced
from samestep.launchers.torchrun_env import refuse_pods
from samestep.ranks.rendezvous.endpoint import choose
from samestep.ranks.rendezvous.free_port import meeting_alone, meeting_point
from samestep.ranks.rendezvous.gloo_interface import Way, use_way_to


def found_here(
    env: Environment, *, master: tuple[str | None, int | None] = (None, None), nodes: int = 1
) -> Detected:
    """Return the launcher and the place of this process; all tasks of a launcher call this.

    Args:
        env: variables of this process.
        master: address and port of the rendezvous, each None if the user did not give it.
        nodes: number of nodes that the user gave.

    Raises:
        DetectionError: the launcher's variables contradict each other, or some or all are missing.
    """
    found = introduced(detect(env), env)
    if found.launcher == UNLAUNCHED:
        refuse_copies(env)
    if nodes == 1:
        refuse_pods(env, found)
    address, port = master
    return replace(found, master_addr=address or found.master_addr, master_port=port or found.master_port)


def planned(job: Job, found: Detected) -> tuple[Job, Plan]:
    """Return the job, with a name, and this process's plan for it; see `plan`."""
    at = found
    if found.place.size > 1 and job.nodes.count == 1:
        address, port = choose(found)  # the port may still change: see `met`
        at = replace(found, master_addr=address, master_port=port)
    settled = plan(job, at)
    if job.run_id:
        return job, settled
    several = isinstance(settled, Spawn) and settled.nodes.count > 1
    # On several nodes, the name must be the same on each.
    return replace(job, run_id=found.job or "none" if several else uuid.uuid4().hex[:8]), settled


@contextmanager
def met(plan: Plan, found: Detected, *, given: bool) -> Iterator[Plan]:
    """Yield the plan with the address and port that its launcher's tasks have agreed on.

    Args:
        plan: plan of this task.
        found: the detected launcher and place.
        given: whether the user gave the rendezvous of the nodes.

    Raises:
        DetectionError: the address is unknown, or not that of rank 0.
        PeerLost: a task did not arrive.
    """
    if isinstance(plan, Join) and plan.place.size == 1 and plan.master is None:
        # A program for several workers reads the rendezvous' variables even if it is the only one.
        with meeting_alone() as master:
            yield replace(plan, master=master)
        return
    apart = plan.place.size > 1 if isinstance(plan, Join) else plan.nodes.count > 1
    if given or not apart:
        yield plan
        return
    with meeting_point(found) as (address, port):
        if isinstance(plan, Join):
            yield replace(plan, master=(address, port))
        else:
            yield replace(plan, nodes=replace(plan.nodes, endpoint=endpoint(address, port)))


def between_nodes(plan: Plan) -> Way | None:
    """Make Gloo use the interface on the route to rank 0 if there are several nodes; return the interface.

    Args:
        plan: a plan with the address of the rendezvous.

    Raises:
        DetectionError: the host of rank 0 does not resolve on this host.
    """
    if isinstance(plan, Join):
        several, host = plan.place.nodes > 1, plan.master[0] if plan.master else ""
    else:
        several, host = plan.nodes.count > 1, host_of(plan.nodes.endpoint)
    return use_way_to(host) if several and host else None
