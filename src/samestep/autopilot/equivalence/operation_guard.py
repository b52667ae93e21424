"""Finds split calls that compute other operations than their equivalence check did.

The guards of a call are the values that it is known to read. A branch of `forward` may also depend on an
object of any other kind, such as an event or a storage. It then shows in the autograd graph of the outputs:
the next call that computes such an operation is compared with the unsplit call.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samestep.autopilot.split.sharded_autograd import is_input_of_slice
from samestep.hooks.tensor_tree import leaves

_LEAF = "AccumulateGrad"
_MOST_NODES = 2000  # the number of graph nodes whose operations are compared: those nearest to the outputs


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The autograd graph of a call's outputs, up to its inputs."""

    operations: frozenset[str]  # their names
    leaves: tuple[Tensor, ...]  # tensors in which a backward accumulates gradients


class OperationGuard:
    """The differentiable operations that the checked calls of one module have computed, by plan."""

    def __init__(self) -> None:
        self._checked: dict[int, set[str]] = {}
        self._due: set[int] = set()

    def add(self, plan: object, graph: CallGraph) -> None:
        """Add the operations of a call that equals the unsplit call."""
        self._checked.setdefault(id(plan), set()).update(graph.operations)
        self._due.discard(id(plan))

    def inspect(self, plan: object, graph: CallGraph) -> None:
        """Compare the operations of a call that was not checked with those of checked calls."""
        known = self._checked.setdefault(id(plan), set())
        if not graph.operations <= known:
            self._due.add(id(plan))

    def is_due(self, plan: object) -> bool:
        """Return whether the next call by this plan must be compared with the unsplit call."""
        return id(plan) in self._due


def call_graph(outputs: Any) -> CallGraph:
    """Return the autograd graph of the outputs of a slice, or of the whole batch after a check.

    Tensors from which the inputs have been computed are no leaves of it: their gradients are those of the
    whole batch on all ranks.
    """
    names: set[str] = set()
    found: dict[int, Tensor] = {}
    roots = [tensor.grad_fn for _, tensor in leaves(outputs) if tensor.grad_fn is not None]
    level: dict[Any, None] = dict.fromkeys(roots)
    seen: set[Any] = set()
    while level:
        seen.update(level)
        if len(seen) < _MOST_NODES:
            names.update(type(node).__name__ for node in level)
        following: dict[Any, None] = {}  # in the same order on all ranks
        for node in level:
            if type(node).__name__ == _LEAF:
                found[id(node.variable)] = node.variable
            following.update((one, None) for one, _ in node.next_functions if one is not None)
        level = dict.fromkeys(one for one in following if one not in seen and not is_input_of_slice(one))
    return CallGraph(frozenset(names), tuple(found.values()))
