"""Whether what ``--algorithm auto`` goes by was measured, before a worker starts."""

from samestep.cli.running import Decision
from samestep.collectives.crossovers import AUTO, Measured
from samestep.launch.accelerators import accelerator_count
from samestep.launch.plan import Spawn


def refuse_unmeasured(decision: Decision, algorithm: str | None) -> None:
    """Refuse ``auto`` where nothing was measured, as far as that is known before a worker starts.

    Accelerators are the workers' to open, and what counts on several nodes is what rank 0's has.

    Args:
        decision: how many workers there will be, and where.
        algorithm: the user's choice.

    Raises:
        UsageError: nothing was; says what to run.
    """
    if algorithm != AUTO or decision.size == 1 or not isinstance(decision.plan, Spawn):
        return
    nodes = decision.plan.nodes
    if (nodes.count == 1 or nodes.rank == 0) and not accelerator_count():
        Measured(ranks=decision.size, hosts=nodes.count, device="cpu").load()
