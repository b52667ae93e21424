"""Gradients averaged by each all-reduce are the serial ones, with equal bits on all ranks."""

import pytest
import torch

from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.collectives.shared_memory import on_one_host
from samestep_lab.collectives.algorithms import ALL_REDUCE, ByAlgorithm
from support.backward_cases import assert_equal_gradients, gradients, network, plain, samples, share_of

SHARES = [3, 2, 2]


def carried(world, name, sync):
    """Return the gradients of two steps."""
    model, found = network(), []
    carrier = ByAlgorithm(on_one_host(world), name)
    with replicate(model, carrier, sync=sync, bucket_bytes=200, check_every=1):
        for step in range(2):
            model.zero_grad()
            plain(model, *share_of(world, samples() + step, SHARES))
            found.append(gradients(model))
        return found


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_gradients_are_the_serial_ones_with_equal_bits(processes, name):
    for sync in ("bucketed", "reference"):
        first, *others = processes.run(carried, 3, name, sync)

        for step, found in enumerate(first):
            model = network()
            plain(model, samples() + step, 1.0)
            assert_equal_gradients(found, gradients(model))
            for other in others:
                assert all(torch.equal(found[name], other[step][name]) for name in found)
