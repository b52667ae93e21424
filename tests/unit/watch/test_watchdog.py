"""What a watchdog knows of other ranks that wait."""

from samestep.base.place import Place
from samestep.watch.standing import Standing, Wait
from samestep.watch.watchdog import Watchdog


class Board:
    """A board with what one other rank has posted."""

    called_off = False

    def __init__(self, standing):
        self._standing = standing

    def read(self):
        return {0: self._standing.packed()}


def watchdog(standing):
    place = Place(rank=1, size=2, local_rank=1, local_size=2, node=0, nodes=1, launcher="samestep")
    return Watchdog(place, Board(standing), limit_s=60, start=0, give_up=print, follow=print, advice="")


def waiting(age_s, start=0):
    wait = Wait(op="all_reduce", seq=3, group="0", ranks=(0, 1), age_s=age_s)
    return watchdog(Standing(start=start, beat=1, wait=wait)).has_seen_waiting(0)


def test_a_rank_that_waits_in_a_collective_for_a_while_is_seen_to():
    assert waiting(5)
    assert not waiting(0.1)
    assert not waiting(5, start=1)
    assert not watchdog(Standing(start=0, beat=1)).has_seen_waiting(0)
