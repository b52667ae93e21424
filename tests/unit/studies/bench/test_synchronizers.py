"""The baseline of one process uses the GPUs of all workers."""

import pytest
import torch

from samestep.studies.bench.synchronizers import gpus_fed


@pytest.mark.parametrize(
    ("device", "size", "seen", "fed"),
    [
        ("cuda:0", 2, 2, [0, 1]),
        ("cuda:0", 2, 4, [0, 1]),
        ("cuda:1", 3, 3, [1, 0, 2]),
        ("cuda", 2, 2, [0, 1]),
        ("cuda:0", 1, 4, []),
        ("cuda:0", 2, 1, []),  # each rank is shown its own GPU only
        ("cuda:0", 8, 4, []),  # ranks of two hosts
        ("cpu", 2, 4, []),
    ],
)
def test_one_process_uses_as_many_gpus_as_workers_and_its_own_first(device, size, seen, fed):
    assert gpus_fed(torch.device(device), size, count=lambda: seen) == fed
