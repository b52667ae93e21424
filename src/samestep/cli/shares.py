"""What each worker of a run computes with: threads, and with ``--bind`` processors of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.base.machine import cpu_share
from samestep.base.place import Place
from samestep.base.topology import cores
from samestep.launch.child import Entry, Start
from samestep.launch.plan import Join, Plan, Spawn
from samestep.launch.report import Report, Word
from samestep.world.binding import bind, checked, share_of
from samestep.world.compute_threads import Threads, guess_sharing, threads_per_rank
from samestep.world.detect import Detected
from samestep.world.unasked import without_unasked_threads

if TYPE_CHECKING:
    from samestep.cli.running import Decision


def share_of_threads(
    settled: Plan, found: Detected, environment: Mapping[str, str], asked: int | None
) -> Threads:
    """Return the compute threads of each worker.

    Args:
        settled: who starts whom.
        found: who started this process.
        environment: its variables.
        asked: what the user said, if anything.
    """
    cpu, forked = cpu_share(), 1
    environment = without_unasked_threads(environment, found.launcher)
    if isinstance(settled, Spawn):
        local = sharing = forked = settled.local
    else:
        local = settled.place.local_size
        sharing = guess_sharing(environment, cpu, local_size=local)
    return threads_per_rank(
        environment,
        cpu,
        local_size=local,
        sharing=sharing,
        launcher=found.launcher,
        asked=asked,
        forked=forked,
    )


def bound(decision: "Decision", kind: str) -> "Decision":
    """Return the decision with its workers bound to processors.

    Raises:
        UsageError: there is no such binding, too few cores, or the program starts its workers itself.
    """
    if checked(kind) != "none" and decision.alone:
        raise UsageError(
            f"--bind {kind} binds samestep's workers, and {decision.job.program.target} starts its own."
        )
    if kind != "none" and isinstance(decision.plan, Spawn):  # before any worker is started
        share_of(kind, cores(cpu_share().allowed), local_rank=0, local_size=decision.plan.local)
    return replace(decision, bind=kind)


def bind_worker(decision: "Decision", place: Place) -> None:
    """Bind this process, which is the worker at `place`, as decided.

    Raises:
        UsageError: there are fewer cores than workers.
    """
    environment, shared = env.snapshot(), True
    if isinstance(decision.plan, Join):
        shared = guess_sharing(environment, cpu_share(), local_size=place.local_size) > 1
    bind(decision.bind, place, environment, shared=shared or place.local_size == 1)


def bound_entry(decision: "Decision", entry: Entry, start: Start, word: Word) -> Report:
    """Be a forked worker, on its own processors."""
    bind_worker(decision, start.place)
    return entry(start, word)
