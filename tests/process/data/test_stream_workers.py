"""`samestep.shard` of a stream that loader processes read."""

import pytest
import torch

import samestep
from samestep.world.solo import SoloWorld
from samestep.world.threads import run_ranks
from support.streams import Counting, Shuffled, Split

SERVED = {"multiprocessing_context": "forkserver", "num_workers": 2}


def steps_of(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("data", [Counting(11), Split(11), Shuffled(11)])
def test_loader_processes_change_nothing_also_where_they_stay(data):
    plain = samestep.shard(data, batch_size=3, world=SoloWorld())
    served = samestep.shard(data, batch_size=3, world=SoloWorld(), **SERVED, persistent_workers=True)
    for _ in range(2):
        assert steps_of(served) == steps_of(plain)
        assert served.state_dict() == plain.state_dict()
    for loader in (plain, served):
        for _ in loader:
            saved = loader.state_dict()
            break
        loader.load_state_dict(saved)
    rest = steps_of(plain)
    assert len(rest) == 3
    assert steps_of(served) == rest


def test_a_rank_reads_its_share_through_two_processes():
    worlds = run_ranks(lambda world: world, 3)
    last = samestep.shard(Counting(7), batch_size=3, drop_last=False, world=_Alike(worlds[2]), **SERVED)
    assert steps_of(last) == [[2], [5], []]


class _Alike:
    """A world whose ranks all say the same."""

    def __init__(self, world):
        self.place, self.device = world.place, torch.device("cpu")

    def all_gather_objects(self, value):
        return [value] * self.place.size
