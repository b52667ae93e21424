"""Decides for each module and signature whether its calls are split: the only place that changes this.

::

    NEW -> CHECKING -> SPLIT -> UNSPLIT
               |                   ^
               +-------------------+

A long check is continued by the next calls, which are computed unsplit. A signature is checked again for a
size of a batch that it has not had; what failed once stays unsplit.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import TypeAlias

from samestep.autopilot.equivalence.split_comparison import SplitTrace
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.call_plans import SplitPlan
from samestep.autopilot.split.call_signatures import CheckedSizes, Signature, Sizes, sizes_of

CHECKED = "while they are checked"
"""The reason for calls that are unsplit because their check goes on."""
AT_ONCE_S = 2.0
"""The seconds of a check at the call that begins it: a guess at what a first step may wait."""
PER_CALL_S = 0.2
"""The seconds of a check at each later call; or as long as an unsplit call takes, if that is longer.

It is a guess at what any step may wait. One comparison may take longer. So checks wait while they have taken
more than half of the time since the first one began.
"""
MOST_SKIPPED = 8
"""Calls in a row that cannot continue a check, after which it begins again with the next one: a guess."""
LOSES = "its helpers were lost again and again during its calls"
_MANY_LOSSES, _CALLS_PER_LOSS = 3, 10
"""Losses of helpers after which calls stay unsplit, unless there were so many calls for each: guesses."""


class State(Enum):
    """The state of the calls of a signature."""

    NEW = "new"
    CHECKING = "checking"
    SPLIT = "split"
    UNSPLIT = "unsplit"


@dataclass(eq=False, slots=True)
class Checking:
    """A check that calls of a signature continue."""

    number: int
    """The number of the check on all ranks, and then of its plan."""
    sizes: Sizes
    """The sizes of the call that began it."""
    unsplit_s: float = 0.0
    """The time of the last unsplit call beside it."""
    skipped: int = 0
    """The calls in a row that could not continue it."""


@dataclass(eq=False, slots=True)
class CheckTime:
    """The time of all checks of a script, at most half of the time since the first one."""

    clock: Callable[[], float] = monotonic
    taken_s: float = 0.0
    _began: float | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Add the time of the block, a check or a part of one."""
        began = self.clock()
        self._began = began if self._began is None else self._began
        try:
            yield
        finally:
            self.taken_s += self.clock() - began

    @property
    def is_over(self) -> bool:
        """Whether checks leave the present call to the training."""
        return self._began is not None and 2 * self.taken_s > self.clock() - self._began

    @property
    def may_begin(self) -> bool:
        """Whether a new check may take `AT_ONCE_S`: the first ones may, until they have taken as much."""
        return self.taken_s <= AT_ONCE_S or not self.is_over


_MOST_SURPRISES = 8
"""The unlike calls after each of which the next is checked: a guess, as a table grows a few times."""
NumberedPlan: TypeAlias = tuple[int, SplitPlan]
"""A plan, and its number on all ranks."""


@dataclass(eq=False, slots=True)
class SignatureCalls:
    """The calls of one module and signature."""

    state: State = State.NEW
    plan: SplitPlan | None = None
    """The plan of the last check; None while the calls are unsplit."""
    plans: dict[Sizes, NumberedPlan] = field(default_factory=dict)
    """The plan that the check of each size has found: one of equal sizes may be wrong for others."""
    why: str = ""
    """The reason why they are unsplit."""
    splits_parts: bool = False
    """Whether the calls that it makes of its parts are split in its place."""
    sizes: CheckedSizes = field(default_factory=CheckedSizes)
    trace: SplitTrace = field(default_factory=SplitTrace)
    """The evidence of the last check."""
    checks: dict[Sizes | None, Checking] = field(default_factory=dict)
    """The checks that go on: of further sizes while calls are split, or else one of calls of any size."""
    have_one_way: bool = True
    """Whether all sizes with a plan are split in the same way, so that others may be without a check."""
    is_refuted: bool = False
    """Whether a split call gave another result than an unsplit one, which no check has seen or will see."""
    _last: NumberedPlan | None = None
    followed: set[Sizes] = field(default_factory=set)
    """The sizes of the calls that have been split without a branch that no check has taken."""
    mirrors: dict[int, int] = field(default_factory=dict)
    """The number of the mirror that each plan was last used or found with, by the number of the plan."""
    continued: Counter[Sizes] = field(default_factory=Counter)
    """The split calls that got slices of what a call before has left in the module, by their sizes."""
    splits: int = 0
    losses: int = 0
    """The calls that were split, and those during which a helper was lost."""
    surprises: int = 0
    """The calls that kept tensors, or took branches, which their check had not seen."""

    def begin_check(self, number: int, arguments: CallArguments) -> Checking:
        """Begin a check with a call."""
        sizes = sizes_of(arguments)
        if self.plan is None:
            self.state, self.why = State.CHECKING, CHECKED
        checking = self.checks[None if self.plan is None else sizes] = Checking(number, sizes)
        return checking

    def check_of(self, arguments: CallArguments) -> Checking | None:
        """Return the check that a call continues, if there is one."""
        return self.checks.get(None if self.plan is None else sizes_of(arguments))

    def pass_check(self, checking: Checking, plan: SplitPlan, arguments: CallArguments, ranks: int) -> None:
        """Split the calls by a plan from now on; the last one of the check has these arguments."""
        self._end(checking)
        self.state, self.plan, self.why = State.SPLIT, plan, ""
        if checking.sizes != sizes_of(arguments):
            self.forget_sizes()
            self.sizes.are_checked(arguments, arguments.total(plan.dims), ranks, plan.dims)
        self.have_one_way &= all(plan.way() == known.way() for _, known in self.plans.values())
        self._last = self.plans[sizes_of(arguments)] = checking.number, plan

    def plan_of(self, arguments: CallArguments) -> NumberedPlan | None:
        """Return the plan of a call: that of its size, or else the last one; None if it is unsplit."""
        return None if self.plan is None else self.plans.get(sizes_of(arguments), self._last)

    def note_split(self, arguments: CallArguments, plan: int, mirror: int) -> None:
        """Note that a call has been split as in its check, by the number of a plan and that of a mirror."""
        self.followed.add(sizes_of(arguments))
        self.mirrors[plan] = mirror

    def has_split(self, arguments: CallArguments, plan: int, mirror: int) -> bool:
        """Return whether calls of these sizes, and by this plan with this mirror, have been split before."""
        return sizes_of(arguments) in self.followed and self.mirrors.get(plan) == mirror

    def forget_sizes(self) -> None:
        """Check the next calls of all sizes."""
        self.sizes, self.have_one_way = CheckedSizes(), True
        self.plans.clear()

    def fail_check(self, checking: Checking, why: str, arguments: CallArguments, *, in_parts: bool) -> None:
        """Leave the calls unsplit from now on; the last one of the check has these arguments."""
        self.stay_unsplit(why, in_parts=in_parts)
        for sizes in (checking.sizes, sizes_of(arguments)):
            self.sizes.fail(sizes, why)

    def forget(self) -> None:
        """Check the next call: the check of this one was not completed."""
        self.stay_unsplit("its check was not completed")
        self.state = State.NEW
        self.forget_sizes()

    def check_again(self, why: str, *, in_parts: bool) -> None:
        """Check the next call: this one was unlike the checked one; after a few such, stay unsplit."""
        self.surprises += 1
        if self.surprises > _MOST_SURPRISES:
            self.stay_unsplit(why, in_parts=in_parts)
        else:
            self.forget()

    @property
    def lose_helpers(self) -> bool:
        """Whether they stay unsplit because helpers are often lost during them.

        They may be the cause: they may need more memory than there is.
        """
        return self.losses >= _MANY_LOSSES and self.losses * _CALLS_PER_LOSS > self.splits

    def stay_unsplit(self, why: str, *, in_parts: bool = False) -> None:
        """Leave the calls unsplit from now on; `in_parts`, split those that they make of their parts."""
        self.state, self.plan, self.why = State.UNSPLIT, None, why
        self.splits_parts = in_parts
        self.checks.clear()

    def _end(self, checking: Checking) -> None:
        for sizes in [sizes for sizes, check in self.checks.items() if check is checking]:
            del self.checks[sizes]


@dataclass(eq=False, slots=True)
class ModuleCalls:
    """The calls of one module, by their signature."""

    by_signature: defaultdict[Signature, SignatureCalls] = field(
        default_factory=lambda: defaultdict(SignatureCalls)
    )

    def failed(self) -> set[Signature]:
        """Return the signatures that stay unsplit."""
        return {signature for signature, calls in self.by_signature.items() if calls.state is State.UNSPLIT}
