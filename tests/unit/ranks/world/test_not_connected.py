import pytest
from torch.distributed import DistNetworkError

from samestep.base.errors import PeerLost, WorldError
from samestep.base.place import Place
from samestep.launch.local.failure import Failure
from samestep.ranks.world.join import _not_connected


@pytest.mark.parametrize(
    ("error", "kind", "is_cause"),
    [(DistNetworkError("the store is lost"), PeerLost, False), (RuntimeError("no nope0"), WorldError, True)],
)
def test_a_lost_store_follows_from_another_ranks_failure(error, kind, is_cause):
    place = Place(rank=1, size=2, local_rank=1, local_size=2)
    found = _not_connected(place, error)
    failure = Failure(
        rank=1, local_rank=1, pid=7, exit_code=1, error=type(found).__name__, message=str(found)
    )

    assert type(found) is kind
    assert (failure.weight == 0) == is_cause
