"""`samestep.shard` with worker processes that load for it."""

import torch
from torch.utils.data import TensorDataset

import samestep
from samestep.world.solo import SoloWorld
from samestep.world.threads import run_ranks

SERVED = {"num_workers": 1, "multiprocessing_context": "forkserver"}


def test_worker_processes_change_nothing():
    data = TensorDataset(torch.arange(20))
    options = {"batch_size": 6, "shuffle": True, "world": SoloWorld()}
    plain = samestep.shard(data, **options)
    served = samestep.shard(data, **options, **SERVED, persistent_workers=True)
    for _ in range(3):
        got = [batch.tolist() for (batch,) in served]
        assert got == [batch.tolist() for (batch,) in plain]
        assert served.state_dict() == plain.state_dict()


def test_a_worker_process_makes_the_batch_of_none():
    data, last = TensorDataset(torch.arange(4)), run_ranks(lambda world: world, 3)[2]
    served = samestep.shard(data, batch_size=3, world=last, collate_fn=list, **SERVED)
    assert [len(batch) for batch in served] == [1, 0]
