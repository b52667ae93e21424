"""Decides which processes start the workers, before any worker starts, as a value that can be printed.

One rule holds for every command that runs workers: the launcher's tasks are the workers, unless more workers
are requested than it started. With T tasks found and n workers requested (``-n``, the total)::

    T            n                       then
    none         any, default 1          spawn n here (or n / nodes on each of --nnodes)
    T            absent, or T            join: this task is a worker
    T = nodes    a multiple of T         spawn n / T in each task
    T            another number          an error with both numbers
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.base.units import counted
from samestep.launch.job import Job, Nodes
from samestep.launchers.detect import UNLAUNCHED, Detected
from samestep.ranks.rendezvous.endpoint import choose, rendezvous_endpoint, reserved_port
from samestep.ranks.rendezvous.gloo_interface import GlooInterface, use_interface_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Plan of a process that is one of its launcher's workers and runs the program itself."""

    place: Place
    master: tuple[str, int] | None

    def describe(self) -> str:
        """Return the plan in one line."""
        return f"join: this task is {self.place.describe()}, started by {self.place.launcher}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Plan of a process that starts `local` workers on its node and supervises them."""

    local: int
    nodes: Nodes

    @property
    def size(self) -> int:
        """Number of workers in total."""
        return self.local * self.nodes.count

    def describe(self) -> str:
        """Return the plan in one line."""
        if self.nodes.count == 1:
            return f"spawn: {counted(self.local, 'worker')} on this node"
        where = "" if self.nodes.rank is None else f", this is node {self.nodes.rank}"
        return (
            f"spawn: {counted(self.local, 'worker')} on this node, "
            f"{self.size} = {self.nodes.count} nodes x {self.local}"
            f"{where}, rendezvous at {self.nodes.endpoint} ({self.nodes.backend})"
        )


Plan: TypeAlias = Join | Spawn


def plan(job: Job, detected: Detected, *, spawns: bool = False) -> Plan:
    """Return this process's plan for `job`; pure.

    Tasks of a program that `spawns` its workers are never workers: on several nodes, each starts it once.

    Raises:
        UsageError: the tasks found do not fit the requested workers.
    """
    asked = job.asked()
    place = detected.place
    tasks = place.size
    if job.nodes.count > 1:
        return _explicit_nodes(job, place, asked)
    if place.launcher == UNLAUNCHED:
        return Spawn(local=asked or 1, nodes=job.nodes)
    if job.workers is None and job.per_node is not None:
        asked = job.per_node * place.nodes
    starts_on_each = spawns and asked is not None and tasks == place.nodes > 1
    if asked is None or (asked == tasks and not starts_on_each):
        return Join(place=place, master=detected.master)
    if tasks == place.nodes and asked % tasks == 0:
        return Spawn(local=asked // tasks, nodes=_launched_nodes(job.nodes, detected))
    raise UsageError(
        f"{asked} workers were asked for, but {place.launcher} started {tasks} task(s) on "
        f"{place.nodes} node(s). Leave -n out to make each task a worker, or start one task per node "
        "and ask for a multiple of the nodes."
    )


def _explicit_nodes(job: Job, place: Place, asked: int | None) -> Spawn:
    """Return the plan for ``--nnodes N``, with the rendezvous that the user gave."""
    nodes = job.nodes
    if asked is None:
        asked = nodes.count
    if asked % nodes.count:
        raise UsageError(
            f"-n {asked} workers cannot be divided evenly by --nnodes {nodes.count}. "
            f"Ask for a multiple of {nodes.count}, or give --nproc-per-node."
        )
    if nodes.rank is None and place.launcher != UNLAUNCHED and place.nodes == nodes.count:
        nodes = replace(nodes, rank=place.node)
    return Spawn(local=asked // nodes.count, nodes=_complete(nodes, job.max_restarts))


def _complete(nodes: Nodes, max_restarts: int) -> Nodes:
    """Return the nodes; refuse several that could not find each other."""
    if not nodes.endpoint:
        raise UsageError(
            f"--nnodes {nodes.count} needs an address for the rendezvous: --master-addr HOST "
            "(--master-port PORT) with --node-rank, or --rdzv-backend c10d --rdzv-endpoint HOST:PORT."
        )
    if nodes.backend == "static" and nodes.rank is None:
        raise UsageError(
            f"--nnodes {nodes.count} at {nodes.endpoint} needs --node-rank 0 .. {nodes.count - 1}."
        )
    if nodes.backend == "static" and max_restarts:
        raise UsageError(
            f"--max-restarts {max_restarts} over several nodes needs nodes that agree on each new start: "
            "use --rdzv-backend c10d --rdzv-endpoint HOST:PORT in place of --node-rank and --master-addr."
        )
    return nodes


def _launched_nodes(nodes: Nodes, detected: Detected) -> Nodes:
    """Return the nodes and the rendezvous of a launcher's tasks, one on each node."""
    place = detected.place
    if place.nodes == 1:
        return nodes
    if detected.master is None:
        raise UsageError(
            f"{place.launcher} started tasks on {place.nodes} nodes but gives no address for the rendezvous. "
            "Set MASTER_ADDR (a host of node 0 that all reach) and MASTER_PORT, or give --master-addr."
        )
    host, port = detected.master
    return Nodes(count=place.nodes, rank=place.node, backend="static", endpoint=endpoint(host, port))


def endpoint(host: str, port: int) -> str:
    """Return host and port as one string, as torch's rendezvous parses it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Return host and port of such a string."""
    return host_of(endpoint), int(endpoint.rpartition(":")[2])


def host_of(endpoint: str) -> str:
    """Return the host of such a string."""
    return endpoint.rpartition(":")[0].strip("[]")


def planned(job: Job, detected: Detected, *, spawns: bool = False) -> tuple[Job, Plan]:
    """Return the job, with a name, and this process's plan for it; see `plan`."""
    at_address = detected
    if detected.place.size > 1 and job.nodes.count == 1:
        address, port = choose(detected)  # the port may still change: see `agreed_plan`
        at_address = replace(detected, master_addr=address, master_port=port)
    settled = plan(job, at_address, spawns=spawns)
    if job.run_id:
        return job, settled
    several = isinstance(settled, Spawn) and settled.nodes.count > 1
    # On several nodes, the name must be the same on each.
    return replace(job, run_id=detected.job or "none" if several else uuid.uuid4().hex[:8]), settled


@contextmanager
def agreed_plan(plan: Plan, detected: Detected, *, is_given: bool) -> Iterator[Plan]:
    """Yield the plan with the address and port that its launcher's tasks agree on, if none was given.

    Raises:
        DetectionError: the address is unknown, or not that of rank 0.
        PeerLost: a task did not arrive.
    """
    if isinstance(plan, Join) and plan.place.size == 1 and plan.master is None:
        # A program for several workers reads the rendezvous' variables even if it is the only one.
        with reserved_port() as holder:
            yield replace(plan, master=holder.getsockname())
        return
    has_peers = plan.place.size > 1 if isinstance(plan, Join) else plan.nodes.count > 1
    if is_given or not has_peers:
        yield plan
        return
    with rendezvous_endpoint(detected) as (address, port):
        if isinstance(plan, Join):
            yield replace(plan, master=(address, port))
        else:
            yield replace(plan, nodes=replace(plan.nodes, endpoint=endpoint(address, port)))


def use_interface(plan: Plan) -> GlooInterface | None:
    """Make Gloo use the interface on the route to rank 0 if there are several nodes; return the interface.

    Raises:
        DetectionError: the host of rank 0 does not resolve on this host.
    """
    if isinstance(plan, Join):
        several, host = plan.place.nodes > 1, plan.master[0] if plan.master else ""
    else:
        several, host = plan.nodes.count > 1, host_of(plan.nodes.endpoint)
    return use_interface_to(host) if several and host else None
