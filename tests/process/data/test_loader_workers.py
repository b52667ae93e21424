"""`samestep.shard` with worker processes that load for it."""

import torch
from torch.utils.data import TensorDataset

import samestep
from samestep.world.solo import SoloWorld


def test_worker_processes_change_nothing():
    data = TensorDataset(torch.arange(20))
    options = {"batch_size": 6, "shuffle": True, "world": SoloWorld()}
    plain = samestep.shard(data, **options)
    served = samestep.shard(
        data, **options, num_workers=1, persistent_workers=True, multiprocessing_context="forkserver"
    )
    for _ in range(3):
        got = [batch.tolist() for (batch,) in served]
        assert got == [batch.tolist() for (batch,) in plain]
        assert served.state_dict() == plain.state_dict()
