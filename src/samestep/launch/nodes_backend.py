"""Runs a job on several nodes, with a launcher on each; torch's elastic agent agrees on ranks and rounds.

The agent's rendezvous and restart logic are torch's; the processes are samestep's, so that they start, fail
and end on several nodes exactly as they do on one.
"""

import errno
import re
import signal
import socket
from contextlib import ExitStack
from typing import Any, NoReturn

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError

from samestep.base import env
from samestep.base.console import open_standard_streams
from samestep.base.errors import PeerLost, UsageError, WorldError
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.base.signals import ends_handled
from samestep.launch.job import Job, Nodes
from samestep.launch.launchers_store import Verdicts, open_launchers_store, rendezvous_of
from samestep.launch.local.child import Entry
from samestep.launch.local.failure import Failure
from samestep.launch.local.local_backend import (
    Outcome,
    Restarts,
    Round,
    RoundEnd,
    Signals,
    Verdict,
    conclude,
    forward_signals,
    signals_noted,
    starts,
)
from samestep.launch.local.orphans import adopt_orphans
from samestep.launch.local.workers import Workers
from samestep.launch.plan import host_of
from samestep.ranks.rendezvous.authentication import AuthenticationError
from samestep.ranks.rendezvous.endpoint import resolve
from samestep.ranks.rendezvous.job_secret import Shared, job_key, shared_secret
from samestep.ranks.rendezvous.network_store import NetworkStore

_IN_USE = re.compile("EADDRINUSE|address already in use", re.IGNORECASE)
_OUT_OF_FILES = re.compile("EMFILE|ENFILE|too many open files", re.IGNORECASE)


def run(job: Job, entry: Entry, *, local: int, nodes: Nodes, on_round_end: RoundEnd) -> Outcome:
    """Run `job` on `local` workers here and as many on each other node, to its end.

    Each worker runs `entry`. `on_round_end` receives the outcome of each round.

    Raises:
        DetectionError: the host of the rendezvous does not resolve on this host.
        UsageError: two nodes have the same number.
        WorldError: the nodes did not find each other.
    """
    resolve(host_of(nodes.endpoint))
    # Each round gets a new store on a new port: keys of a dead round would mislead the next.
    env.export({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    open_standard_streams()
    adopt_orphans()
    secret = job_key(env.snapshot(), "nodes")
    with signals_noted() as signals, shared_secret(secret) as shared, ExitStack() as stack:
        agent: _Agent | None = None
        try:
            store = _opened_store(nodes, secret)
            stack.callback(store.close)
            spec = WorkerSpec(
                role=job.role,
                local_world_size=local,
                entrypoint=job.program.target,
                rdzv_handler=rendezvous_of(job, nodes, store),
                max_restarts=job.max_restarts,
                monitor_interval=job.monitor_interval_s,
            )
            agent = _Agent(
                spec, job=job, entry=entry, shared=shared, signals=signals, on_round_end=on_round_end
            )
            agent.run()
        except SignalException as interrupt:
            return Outcome(interrupted_by=interrupt.sigval)
        except (RendezvousError, DistError, OSError) as error:
            begun = agent is not None and agent.has_begun
            raise WorldError(_lost(nodes) if begun else _no_rendezvous(error, nodes)) from error
    return agent.outcome


def _opened_store(nodes: Nodes, secret: bytes) -> NetworkStore:
    """Return the store of the launchers."""
    try:
        with ends_handled(signal.SIG_DFL):
            return open_launchers_store(nodes, secret)
    except PeerLost as error:
        if isinstance(error.__cause__, AuthenticationError):  # a longer wait would not help
            raise UsageError(str(error)) from None
        name = "timeout" if nodes.backend == "static" else "read_timeout"
        raise UsageError(
            f"no launcher answers at {nodes.endpoint} ({nodes.backend}): {error} Start node 0 there, correct "
            f"the endpoint, or wait longer: --rdzv-conf {name}=SECONDS."
        ) from None


def _no_rendezvous(error: Exception, nodes: Nodes) -> str:
    """Return the message about a failed rendezvous, with the remedy."""
    reason = str(error).partition("\n")[0].rstrip(". ")  # C++ frames follow the first line
    if isinstance(error, RendezvousClosedError):
        return f"the run at {nodes.endpoint} has ended, and this node came too late to take part in it."
    if getattr(error, "errno", None) == errno.EADDRINUSE or _IN_USE.search(reason):
        return (
            f"another process has the port of {nodes.endpoint}, the rendezvous of the {nodes.count} nodes. "
            f"Give another port, on every node; or is this a second launcher for node 0? ({reason})"
        )
    is_network = isinstance(
        error, (RendezvousError, DistError, ConnectionError, TimeoutError, socket.gaierror)
    )
    if not is_network or _OUT_OF_FILES.search(reason):
        return f"this node could not take part in the rendezvous at {nodes.endpoint}: {reason}."
    return (
        f"the rendezvous of {nodes.count} nodes at {nodes.endpoint} ({nodes.backend}) failed: {reason}. "
        "Start the launcher on every node, with the same address."
    )


def _lost(nodes: Nodes) -> str:
    """Return the message for nodes whose rendezvous is lost, with the remedy."""
    return (
        f"the rendezvous at {nodes.endpoint} is lost: its launcher has ended or is out of reach, and "
        "no node can take its place. Start all of them again with the same command, or let the scheduler do "
        "that (samestep submit slurm --requeue): a training continues from its last checkpoint."
    )


class _Agent(SimpleElasticAgent):
    """torch's agent, with `Workers` as its worker processes."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        job: Job,
        entry: Entry,
        shared: Shared,
        signals: Signals,
        on_round_end: RoundEnd,
    ) -> None:
        super().__init__(spec)
        self.outcome = Outcome()
        self._restarts = Restarts(spec.max_restarts)
        self._verdicts: Verdicts | None = None
        self._is_elastic = job.nodes.least is not None
        self._has_failed = False
        self._job = job
        self._shared = shared
        self._signals = signals
        self._on_round_end = on_round_end
        self._entry = entry
        self._workers: Workers | None = None
        self.has_begun = False  # whether workers have been started at least once

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        # C++ code waits for the other nodes, and would delay a recorded signal until it returns.
        with ends_handled(signal.SIG_DFL):
            super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        restarts = spec.max_restarts - self._remaining_restarts
        group: Any = worker_group  # torch annotates fields that the rendezvous has set as None
        this = Round(
            run_id=self._job.run_id,
            restarts=restarts,
            max_restarts=spec.max_restarts,
            master=(group.master_addr, group.master_port),
            store_is_served=spec.rdzv_handler.use_agent_store,
            role=self._job.role,
        )
        here = [
            Place(
                rank=worker.global_rank,
                size=worker.world_size,
                local_rank=worker.local_rank,
                local_size=spec.local_world_size,
                node=group.group_rank,
                nodes=group.group_world_size,
                launcher="samestep",
            )
            for worker in worker_group.workers
        ]
        self.has_begun = True
        store: Any = self._store  # torch annotates it as None
        self._verdicts = Verdicts(
            store, restarts=restarts, node=group.group_rank, nodes=group.group_world_size
        )
        self._place = here[0]
        self._workers = Workers(
            wakeup=self._signals.wakeup,
            private=[*self._signals.files, self._shared.file],
            needs_all=self._job.needs_all,
        )
        local_starts = starts(self._job, here, this, variables=self._shared.variables)
        self._workers.start(local_starts, self._entry, received=self._signals.received)
        return {worker.start.place.local_rank: worker.pid for worker in self._workers.all}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers = self._workers
        if workers is None:
            return RunResult(state=WorkerState.INIT)
        workers.wait(0)
        forward_signals(workers, self._signals)
        if workers.running and not workers.failures and not self._signals.received:
            return self._unless_another_has_failed(workers)
        self.outcome = conclude(workers, self._signals, self._job)
        self._end_round()
        if self.outcome.interrupted_by:
            self._leave_by_signal(self.outcome.interrupted_by)
        if self.outcome.preempted:
            return RunResult(state=self._after_stop(worker_group))
        if self.outcome.cause is None:
            self._on_round_end(self.outcome, self._restarts)
            return RunResult(state=WorkerState.SUCCEEDED)
        self._fail(self.outcome.cause, workers.last_step)
        return RunResult(state=WorkerState.FAILED)

    def _unless_another_has_failed(self, workers: Workers) -> RunResult:
        """Stop the workers if another node has failed for good."""
        verdict = None if self._verdicts is None or self._is_elastic else self._verdicts.poll()
        if verdict is None:
            return RunResult(state=WorkerState.HEALTHY)
        workers.stop(
            signal.SIGTERM, grace_s=self._job.grace_s, hurry=lambda: bool(self._signals.received), first="all"
        )
        self._end_round()
        self._end_with(verdict)
        return RunResult(state=WorkerState.FAILED)

    def _end_with(self, verdict: Verdict) -> None:
        """End with the verdict of another node."""
        self._remaining_restarts = 0
        self.outcome = Outcome(elsewhere=verdict)

    def _fail(self, cause: Failure, step: int | None) -> None:
        """Report a failure of this node's workers; if it is final, to the other nodes as well."""
        self._restarts.fail(cause, step)
        self._has_failed = True
        if not self._restarts.left:
            self._remaining_restarts = 0
        self._on_round_end(self.outcome, self._restarts)
        if self._remaining_restarts or self._verdicts is None or self._is_elastic:
            return
        self._verdicts.post(cause.describe(self._place.size), code=cause.code, weight=cause.weight)
        if cause.weight and (verdict := self._verdicts.await_cause(cause.weight)) is not None:
            self._end_with(verdict)

    def _leave_by_signal(self, number: int) -> NoReturn:
        """End this launcher by a signal; the other nodes end too, unless all workers were preempted."""
        if self._verdicts is not None and not self._is_elastic:
            if self.outcome.preempted:
                self._verdicts.done()
            else:
                self._verdicts.post(f"its launcher was sent {signal.Signals(number).name}", code=128 + number)
        raise SignalException("the launcher was asked to end", sigval=signal.Signals(number))

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self._has_failed:  # otherwise a node has joined or left
            self._has_failed = False
            holds_within(lambda: bool(self._signals.received), self._restarts.pause_s, most_s=0.1)
            if self._signals.received:
                self._leave_by_signal(self._signals.received[0])
            self._restarts.again()
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes; torch's own wait handles no signal and does not detect a failed node."""
        if self._verdicts is None:
            return
        self._verdicts.done()
        try:
            verdict = self._verdicts.await_all(end=lambda: bool(self._signals.received))
        except (RuntimeError, PeerLost):
            has_ended_the_run = self._place.is_main and not self._job.needs_all
            if self._is_elastic or has_ended_the_run:
                return
            raise
        if self._signals.received:
            self._leave_by_signal(self._signals.received[0])
        if verdict is not None and not self._is_elastic:
            self._end_with(verdict)

    def _after_stop(self, worker_group: WorkerGroup) -> WorkerState:
        """Return the state after workers were asked to stop, and did.

        If a node joins, each other launcher stops its workers when it detects that; the workers agree to
        stop, and some end before their own launcher has detected it. Otherwise the run is over for now.
        """
        if worker_group.spec.rdzv_handler.num_nodes_waiting() > 0:
            return WorkerState.HEALTHY
        return WorkerState.SUCCEEDED

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - torch's signature
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:  # noqa: ARG002
        if self._workers is not None:
            self._workers.stop(death_sig, grace_s=self._job.grace_s)
            self._end_round()

    def _record_worker_events(self, result: RunResult) -> None:
        """Record nothing: torch's event log has no reader here."""

    def _end_round(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None
