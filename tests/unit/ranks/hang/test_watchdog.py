"""The watchdog reads which other ranks wait."""

from samestep.base.place import Place
from samestep.ranks.hang.rank_status import RankStatus, Wait
from samestep.ranks.hang.watchdog import Response, Watchdog


class Store:
    """A store with the status of one other rank."""

    is_aborted = False

    def __init__(self, status):
        self._status = status

    def read(self):
        return {0: self._status.to_bytes()}


def watchdog(status):
    place = Place(rank=1, size=2, local_rank=1, local_size=2, node=0, nodes=1, launcher="samestep")
    response = Response(limit_s=60, on_hang=print, on_abort=print, diverged="", steps="")
    return Watchdog(place, Store(status), response)


def waiting(age_s, generation=0):
    wait = Wait(op="all_reduce", seq=3, group="0", ranks=(0, 1), age_s=age_s)
    return watchdog(RankStatus(generation=generation, beat=1, wait=wait)).has_seen_waiting(0)


def test_a_rank_counts_as_waiting_after_a_while_in_a_collective():
    assert waiting(5)
    assert not waiting(0.1)
    assert not waiting(5, generation=1)
    assert not watchdog(RankStatus(generation=0, beat=1)).has_seen_waiting(0)
