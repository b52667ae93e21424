"""From what is found here to a plan, and from there to one whose tasks have agreed where they meet."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from samestep.base.env import Environment
from samestep.launch.job import Job
from samestep.launch.plan import Join, Plan, Spawn, endpoint, host_of, plan
from samestep.world.detect import UNLAUNCHED, Detected, detect
from samestep.world.gloo_interface import Way, use_way_to
from samestep.world.meeting import meeting_alone, meeting_point
from samestep.world.mpi_hosts import introduced
from samestep.world.pods import refuse_pods
from samestep.world.rendezvous import choose
from samestep.world.stray import refuse_copies


def found_here(
    env: Environment, *, master: tuple[str | None, int | None] = (None, None), nodes: int = 1
) -> Detected:
    """Return who started this process; all tasks of a launcher call this.

    Args:
        env: its environment.
        master: address and port where the ranks meet, each if the user said.
        nodes: how many nodes the user said there are.

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
    """Return the job, with a name, and what this process does for it; see `plan`."""
    at = found
    if found.place.size > 1 and job.nodes.count == 1:
        address, port = choose(found)  # the port may yet change: see `met`
        at = replace(found, master_addr=address, master_port=port)
    settled = plan(job, at)
    if job.run_id:
        return job, settled
    several = isinstance(settled, Spawn) and settled.nodes.count > 1
    # On several nodes, the name that each of them gives.
    return replace(job, run_id=found.job or "none" if several else uuid.uuid4().hex[:8]), settled


@contextmanager
def met(plan: Plan, found: Detected, *, given: bool) -> Iterator[Plan]:
    """Give the plan with the address and port that its launcher's tasks have agreed on.

    Args:
        plan: what this task does.
        found: what its launcher said.
        given: whether the user said where the nodes meet.

    Raises:
        DetectionError: the address is unknown, or not that of rank 0.
        PeerLost: some task did not come.
    """
    if isinstance(plan, Join) and plan.place.size == 1 and plan.master is None:
        # A program that was written for several workers wants to know where they meet even if it is alone.
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
    """Have Gloo use the interface on the way to rank 0, where there are several nodes; return which it is.

    Args:
        plan: whose tasks know where they meet.

    Raises:
        DetectionError: that host is unknown here.
    """
    if isinstance(plan, Join):
        several, host = plan.place.nodes > 1, plan.master[0] if plan.master else ""
    else:
        several, host = plan.nodes.count > 1, host_of(plan.nodes.endpoint)
    return use_way_to(host) if several and host else None
