"""Binds each worker of a run to cores of its own (``--bind``)."""

from dataclasses import replace

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine.description import cpu_share
from samestep.base.machine.topology import cores
from samestep.base.place import Place
from samestep.launch.local.child import Entry, Start
from samestep.launch.local.worker_report import Report, Word
from samestep.launch.plan import Join, Spawn
from samestep.launchers.binding import bind, checked, share_of
from samestep.launchers.compute_threads import guess_sharing
from samestep.run.decision import Decision


def with_binding(decision: Decision, kind: str) -> Decision:
    """Return the decision with its workers bound to cores.

    Raises:
        UsageError: there is no such binding, there are too few cores, or the program starts its own workers.
    """
    if checked(kind) != "none" and decision.starts_own_workers:
        raise UsageError(
            f"--bind {kind} binds samestep's workers, and {decision.job.program.target} starts its own. "
            "Leave --bind out."
        )
    if kind != "none" and isinstance(decision.plan, Spawn):  # raises before any worker is started
        share_of(kind, cores(cpu_share().allowed), local_rank=0, local_size=decision.plan.local)
    return replace(decision, bind=kind)


def bind_worker(decision: Decision, place: Place) -> None:
    """Bind this process, the worker at `place`, to the cores that were decided.

    Raises:
        UsageError: there are fewer cores than workers.
    """
    environment, shared = env.snapshot(), True
    if isinstance(decision.plan, Join):
        shared = guess_sharing(environment, cpu_share(), local_size=place.local_size) > 1
    bind(decision.bind, place, environment, shared=shared or place.local_size == 1)


def bound_entry(decision: Decision, entry: Entry, start: Start, word: Word) -> Report:
    """Bind this forked worker, and run its entry."""
    bind_worker(decision, start.place)
    return entry(start, word)
