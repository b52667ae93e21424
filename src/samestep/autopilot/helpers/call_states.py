"""Decides for each module and signature whether its calls are split: the only place that changes this.

::

    NEW -> CHECKING -> SPLIT -> UNSPLIT
               |                   ^
               +-------------------+

A signature is checked again for a size of a batch that it has not had; what failed once stays unsplit.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from samestep.autopilot.equivalence.split_trace import SplitTrace
from samestep.autopilot.split.call_plans import SplitPlan
from samestep.autopilot.split.call_signatures import CheckedSizes, Signature

LOSES = "its helpers were lost again and again during its calls"
_MANY_LOSSES, _CALLS_PER_LOSS = 3, 10


class State(Enum):
    """The state of the calls of a signature."""

    NEW = "new"
    CHECKING = "checking"
    SPLIT = "split"
    UNSPLIT = "unsplit"


@dataclass(eq=False, slots=True)
class SignatureCalls:
    """The calls of one module and signature."""

    state: State = State.NEW
    number: int = 0
    """The number of the plan on all ranks."""
    plan: SplitPlan | None = None
    why: str = ""
    """The reason why they are unsplit."""
    sizes: CheckedSizes = field(default_factory=CheckedSizes)
    trace: SplitTrace = field(default_factory=SplitTrace)
    """The evidence of the last check."""
    splits: int = 0
    losses: int = 0
    """The calls that were split, and those during which a helper was lost."""

    def begin_check(self, number: int) -> None:
        """Begin a check, whose plan gets a number."""
        self.state, self.number = State.CHECKING, number

    def pass_check(self, plan: SplitPlan) -> None:
        """Split the calls by a plan from now on."""
        self.state, self.plan, self.why = State.SPLIT, plan, ""

    def forget(self) -> None:
        """Check the next call: the check of this one was not completed."""
        self.state, self.plan, self.sizes = State.NEW, None, CheckedSizes()
        self.why = "its check was not completed"

    @property
    def lose_helpers(self) -> bool:
        """Whether they stay unsplit because helpers are often lost during them.

        They may be the cause: they may need more memory than there is.
        """
        return self.losses >= _MANY_LOSSES and self.losses * _CALLS_PER_LOSS > self.splits

    def stay_unsplit(self, why: str) -> None:
        """Leave the calls unsplit from now on."""
        self.state, self.plan, self.why = State.UNSPLIT, None, why


@dataclass(eq=False, slots=True)
class ModuleCalls:
    """The calls of one module, by their signature."""

    by_signature: defaultdict[Signature, SignatureCalls] = field(
        default_factory=lambda: defaultdict(SignatureCalls)
    )

    def plans(self) -> dict[Signature, SplitPlan | None]:
        """Return the plan of each signature, None for those that stay unsplit."""
        return {signature: one.plan for signature, one in self.by_signature.items()}
