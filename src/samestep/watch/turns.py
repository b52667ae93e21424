"""Which of a script's optimizers ends a step: with several, the whole turn of them is one."""

from collections import Counter
from weakref import WeakSet, ref

from torch.optim.optimizer import Optimizer

LONGEST = 100
"""Steps of one optimizer in a turn, at most: what comes after more is in turns with nothing."""


class Turns:
    """Learns in which order optimizers step, from their steps; and again where that changes.

    ::

        A A A A          each is a turn
        D G D G D G      G ends a turn, once D has come again
        D D D G D D D G  so it does here
        A A A B B B A A  B is a new one in the place of A, once it has come twice; then A in that of B
        D G D G D D D D  D is alone, once it has come more than twice as often as in any turn with G
    """

    def __init__(self) -> None:
        self._known: WeakSet[Optimizer] = WeakSet()
        """Those that step in turns at this time."""
        self._turn: Counter[int] = Counter()
        """How often each has stepped in the turn under way, by id; one that is alone, since it is."""
        self._most: Counter[int] = Counter()
        """How often in any turn of several."""
        self._before: int | None = None
        self._last: int | None = None
        """The optimizer that ends a turn, by its id; None as long as that is not known."""
        self._ended = 0
        self._alone: ref[Optimizer] | None = None
        """The one that each turn is, where the last step was its own too."""
        self.begins_anew = False
        """Whether it is known since the last step that all before were but parts of turns."""

    def ends_with(self, optimizer: Optimizer) -> bool:
        """Take down that an optimizer has stepped; return whether a turn ends with it."""
        this = id(optimizer)
        if self._alone is not None and self._alone() is optimizer:  # as in most scripts, in each step
            self._turn[this] += 1
            self._ended += 1
            self.begins_anew = False
            return True
        self._alone, self.begins_anew = None, False
        if optimizer not in self._known:
            self._last = None if self._known else this
            self._known.add(optimizer)
        elif self._last is None:
            self._learn(optimizer)
        elif this != self._last and self._turn[this] >= min(2 * self._most[this], LONGEST):
            self._last = self._before
            self._leave({*self._turn})
        self._turn[this] += 1
        self._before = this
        if this != self._last:
            return False
        self._ended += 1
        if len(self._known) > 1:
            self._most |= self._turn
            self._turn.clear()
        else:
            self._alone = ref(optimizer)
        return True

    def _learn(self, optimizer: Optimizer) -> None:
        """Know who ends a turn, as after a new one has come this one comes, which is known."""
        self._last = self._before
        if self._before == id(optimizer):
            self._leave({id(optimizer)})
        else:
            self._most |= self._turn
            self._turn.clear()
            self.begins_anew = self._ended <= LONGEST

    def _leave(self, ids: set[int]) -> None:
        """Go on with these alone: the others come no more, or as new ones."""
        self._known = WeakSet(one for one in self._known if id(one) in ids)
        self._turn.clear()
