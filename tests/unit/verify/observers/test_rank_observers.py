"""The devices of the ranks are compared with their numbers on the node."""

import pytest
import torch

from samestep.verify.observers.rank_observers import DeviceOfRank


@pytest.mark.parametrize(("gpus", "codes"), [(2, ["device-of-rank-0"]), (1, [])])
def test_a_rank_that_sees_a_single_gpu_uses_no_other_ranks_by_mistake(monkeypatch, gpus, codes):
    """Only this catches an accusation of ranks that have one GPU each by CUDA_VISIBLE_DEVICES."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    observer = DeviceOfRank()
    observer._used = {0}
    assert [note.code for note in observer.notes()] == codes
