"""Gradients that some ranks miss are averaged, and those that all ranks miss stay None."""

from weakref import ref

import pytest
import torch
from torch import nn

from samestep.parallel.gradients.bucketed import Bucketed
from samestep.parallel.gradients.synchronizer import SyncConfig
from samestep.ranks.world.thread_world import run_ranks

SIZES, RANKS, STEPS = (3, 5, 2), 3, 24


def used(step, rank):
    """Return which parameters a rank uses in a step: all at first, then some, then others, at last none."""
    if step < 8:
        return {0, 1, 2}
    return {0} | ({1} if (step + rank) % 3 == 0 else set()) | ({2} if step % 5 == 0 and rank == 1 else set())


def averages(world, *, bucket_bytes):
    """Return the gradients after each step; zero_grad sets them to None before."""
    parameters = {f"p{index}": nn.Parameter(torch.ones(size)) for index, size in enumerate(SIZES)}
    model = nn.ParameterDict(parameters)
    synchronizer = Bucketed(
        SyncConfig(
            world=world,
            model=ref(model),
            parameters=parameters,
            statistics=(),
            bucket_bytes=bucket_bytes,
            may_overlap=False,
            after_sync=lambda: None,
        )
    )
    synchronizer.attach()
    gradients = []
    for step in range(STEPS):
        for parameter in parameters.values():
            parameter.grad = None
        row = list(parameters.values())
        sum((step + world.place.rank) * row[index].sum() for index in used(step, world.place.rank)).backward()
        gradients.append([None if parameter.grad is None else parameter.grad.clone() for parameter in row])
    synchronizer.detach()
    return gradients


def expected(step, index):
    parts = [float(step + rank) for rank in range(RANKS) if index in used(step, rank)]
    return torch.full((SIZES[index],), sum(parts) / RANKS) if parts else None


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["a bucket each", "one bucket"])
def test_missing_gradients_are_averaged_or_stay_none(bucket_bytes):
    for steps in run_ranks(lambda world: averages(world, bucket_bytes=bucket_bytes), RANKS):
        for step, gradients in enumerate(steps):
            for index, gradient in enumerate(gradients):
                wanted = expected(step, index)
                assert (gradient is None) == (wanted is None), (step, index)
                if wanted is not None:
                    torch.testing.assert_close(gradient, wanted)
