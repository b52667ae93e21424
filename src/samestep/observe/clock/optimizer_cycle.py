"""Detects which optimizer step ends a training step: with several optimizers, the last of each cycle."""

from collections import Counter
from weakref import WeakSet, ref

from torch.optim.optimizer import Optimizer

MAX_CYCLE = 100
"""Maximum steps of one optimizer in a cycle; another that steps later is in no cycle with it."""


class OptimizerCycle:
    """Infers the order in which optimizers step, and infers it again when that changes.

    ::

        A A A A          each step is a cycle
        D G D G D G      G ends a cycle, once D has stepped again
        D D D G D D D G  the same
        A A A B B B A A  B replaces A, once it has stepped twice; then A replaces B
        D G D G D D D D  D is alone, once it has stepped more than twice as often as in any cycle with G
    """

    def __init__(self) -> None:
        self._known: WeakSet[Optimizer] = WeakSet()  # the optimizers of the current cycle order
        self._steps: Counter[int] = Counter()
        """Steps of each optimizer in the current cycle, by id; of a single optimizer, since it is single."""
        self._most: Counter[int] = Counter()  # maximum steps of each optimizer in any cycle of several
        self._before: int | None = None
        self._last: int | None = None  # id of the optimizer that ends a cycle; None while unknown
        self._ended = 0
        self._single: ref[Optimizer] | None = None
        """The optimizer whose every step is a cycle, if the last step was its own."""
        self.restarts = False  # whether the last step showed that all cycles so far were only parts of cycles

    def ends_cycle(self, optimizer: Optimizer) -> bool:
        """Record that an optimizer has stepped; return whether this ends a cycle."""
        this = id(optimizer)
        if self._single is not None and self._single() is optimizer:  # as in most scripts, in each step
            self._steps[this] += 1
            self._ended += 1
            self.restarts = False
            return True
        self._single, self.restarts = None, False
        if optimizer not in self._known:
            self._last = None if self._known else this
            self._known.add(optimizer)
        elif self._last is None:
            self._infer_last(optimizer)
        elif this != self._last and self._steps[this] >= min(2 * self._most[this], MAX_CYCLE):
            self._last = self._before
            self._keep({*self._steps})
        self._steps[this] += 1
        self._before = this
        if this != self._last:
            return False
        self._ended += 1
        if len(self._known) > 1:
            self._most |= self._steps
            self._steps.clear()
        else:
            self._single = ref(optimizer)
        return True

    def _infer_last(self, optimizer: Optimizer) -> None:
        """Set which optimizer ends a cycle: after a new one, a known one steps again."""
        self._last = self._before
        if self._before == id(optimizer):
            self._keep({id(optimizer)})
        else:
            self._most |= self._steps
            self._steps.clear()
            self.restarts = self._ended <= MAX_CYCLE

    def _keep(self, ids: set[int]) -> None:
        """Remove all other optimizers from the order; they do not step again, or count as new."""
        self._known = WeakSet(one for one in self._known if id(one) in ids)
        self._steps.clear()
