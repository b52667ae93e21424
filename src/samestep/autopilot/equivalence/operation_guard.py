"""Finds split calls that compute other operations than their equivalence check did.

The guards of a call are the values that it is known to read. A branch of `forward` may also depend on an
object of any other kind, such as an event or a storage. It then shows in the autograd graph of the outputs:
the next call that computes such an operation is compared with the unsplit call.
"""

from typing import Any

from samestep.hooks.tensor_tree import leaves

_MOST_NODES = 2000  # the number of graph nodes that are inspected: those nearest to the outputs
_BEGIN = "_SliceBackward"
"""The node of a sliced input with gradients; the graph before it belongs to other calls."""


class OperationGuard:
    """The differentiable operations that the checked calls of one module have computed, by plan."""

    def __init__(self) -> None:
        self._checked: dict[int, set[str]] = {}
        self._due: set[int] = set()

    def add(self, plan: object, outputs: Any) -> None:
        """Add the operations of a call that equals the unsplit call."""
        self._checked.setdefault(id(plan), set()).update(operations(outputs))
        self._due.discard(id(plan))

    def inspect(self, plan: object, outputs: Any) -> None:
        """Compare the operations of a call that was not checked with those of checked calls."""
        known = self._checked.setdefault(id(plan), set())
        if not operations(outputs) <= known:
            self._due.add(id(plan))

    def is_due(self, plan: object) -> bool:
        """Return whether the next call by this plan must be compared with the unsplit call."""
        return id(plan) in self._due


def operations(outputs: Any) -> set[str]:
    """Return the names of the operations in the autograd graph of outputs, up to the call's inputs."""
    found: set[str] = set()
    seen: set[Any] = set()
    waiting = [tensor.grad_fn for _, tensor in leaves(outputs) if tensor.grad_fn is not None]
    while waiting and len(seen) < _MOST_NODES:
        level = {node for node in waiting if node not in seen and type(node).__name__ != _BEGIN}
        seen |= level
        found.update(type(node).__name__ for node in level)
        waiting = [one for node in level for one, _ in node.next_functions if one is not None]
    return found
