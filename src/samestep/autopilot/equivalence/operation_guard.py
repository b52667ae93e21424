"""Finds split calls that compute other operations than their equivalence check did.

The guards of a call are the values that it is known to read. A branch of `forward` may also depend on an
object of any other kind, such as an event or a storage. It then shows in the autograd graph of the outputs:
the next call that computes such an operation is compared with the unsplit call.
"""

from samestep.autopilot.split.call_plans import SplitPlan
from samestep.autopilot.split.sharded_autograd import CallGraph


class OperationGuard:
    """The differentiable operations that the checked calls of one module have computed, by plan."""

    def __init__(self) -> None:
        # The plans themselves, since the `id` of a freed one may be that of a later one, on one rank only.
        self._checked: dict[SplitPlan, set[str]] = {}
        self._due: set[SplitPlan] = set()

    def add(self, plan: SplitPlan, graph: CallGraph) -> None:
        """Add the operations of a call that equals the unsplit call."""
        self._checked.setdefault(plan, set()).update(graph.operations)
        self._due.discard(plan)

    def inspect(self, plan: SplitPlan, graph: CallGraph) -> None:
        """Compare the operations of a call that was not checked with those of checked calls."""
        known = self._checked.setdefault(plan, set())
        if not graph.operations <= known:
            self._due.add(plan)

    def is_due(self, plan: SplitPlan) -> bool:
        """Return whether the next call by this plan must be compared with the unsplit call."""
        return plan in self._due
