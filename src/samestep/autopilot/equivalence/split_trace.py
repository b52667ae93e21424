"""Keeps the evidence of an equivalence check: the ways tried, and the first difference of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from samestep.autopilot.equivalence.disturbance import Disturbance
from samestep.autopilot.equivalence.rounding import Difference
from samestep.autopilot.split.call_arguments import LIST, Dims
from samestep.hooks.tensor_tree import text


@dataclass(frozen=True, slots=True)
class TriedWay:
    """A way to split the calls of a signature, and why it is none; empty for the way that passed."""

    dims: Dims
    disturbance: Disturbance | None
    """The change of the call that showed it; None for the call itself."""
    why: str
    difference: Difference | None

    def __str__(self) -> str:
        on = "the call itself" if self.disturbance is None else f"a call with {_described(self.disturbance)}"
        apart = "" if self.difference is None else f", by {self.difference}"
        return f"{_way(self.dims)}: {self.why or 'equal'}{apart} (on {on})"


@dataclass(eq=False, slots=True)
class SplitTrace:
    """The ways that a check has tried, in order."""

    tried: list[TriedWay] = field(default_factory=list)

    def add(
        self, dims: Dims, disturbance: Disturbance | None, why: str, difference: Difference | None
    ) -> None:
        """Add a way with its result."""
        self.tried.append(TriedWay(dict(dims), disturbance, why, difference))

    def explained(self, why: str) -> str:
        """Return a reason with the difference that was found for it, if there is one."""
        apart = next((one.difference for one in self.tried if one.why == why and one.difference), None)
        return why if apart is None else f"{why}: it differs by {apart.apart:.2g} when the batch is split"


def _way(dims: Mapping[tuple[str | int, ...], int]) -> str:
    """Return the inputs that are split, as ``[0] along 0, ['mask'] along 1``."""
    parts = [
        f"{text(path[1:])} {'as a list' if dim == LIST else f'along {dim}'}" for path, dim in dims.items()
    ]
    return ", ".join(parts)


def _described(disturbance: Disturbance) -> str:
    """Return the changes that a disturbance makes beside the usual ones."""
    usual = Disturbance(disturbance.size)
    changed = [
        f"{one.name}={getattr(disturbance, one.name)}"
        for one in fields(disturbance)
        if getattr(disturbance, one.name) != getattr(usual, one.name)
    ]
    return "other weights and samples" + (f" ({', '.join(changed)})" if changed else "")
