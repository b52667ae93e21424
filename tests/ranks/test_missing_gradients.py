"""Gradients that some ranks miss are averaged, and those that all ranks miss stay None."""

from weakref import ref

import pytest
import torch
from torch import nn

from samestep.parallel.gradients.bucketed import AGREE_EVERY, Bucketed
from samestep.parallel.gradients.synchronizer import SyncConfig
from samestep.ranks.world.protocol import RelayedWorld
from samestep.ranks.world.thread_world import run_ranks

SIZES, RANKS = (3, 5, 2), 3


class CountingWorld(RelayedWorld):
    """A world that counts the maxima over ranks: of the flags that hosts exchange."""

    maxima = 0

    def all_reduce(self, tensor, *, op="sum"):
        self.maxima += op == "max"
        super().all_reduce(tensor, op=op)


def used(step, rank):
    """Return which parameters a rank uses in a step: all at first, then some, then others, at last none."""
    if step < AGREE_EVERY // 2:
        return {0, 1, 2}
    return {0} | ({1} if (step + rank) % 3 == 0 else set()) | ({2} if step % 5 == 0 and rank == 1 else set())


def averages(world, *, on_host, bucket_bytes):
    """Return the gradients after each step; zero_grad sets them to None before."""
    counting = CountingWorld(world)
    parameters = {f"p{index}": nn.Parameter(torch.ones(size)) for index, size in enumerate(SIZES)}
    model = nn.ParameterDict(parameters)
    synchronizer = Bucketed(
        SyncConfig(
            world=counting,
            model=ref(model),
            parameters=parameters,
            statistics=(),
            bucket_bytes=bucket_bytes,
            may_overlap=False,
            after_sync=lambda: None,
            has_cpu_tensors=on_host,
        )
    )
    synchronizer.attach()
    found = []
    for step in range(3 * AGREE_EVERY):
        for parameter in parameters.values():
            parameter.grad = None
        own = list(parameters.values())
        sum((step + world.place.rank) * own[index].sum() for index in used(step, world.place.rank)).backward()
        found.append([None if one.grad is None else one.grad.clone() for one in own])
    synchronizer.detach()
    return found, counting.maxima


def expected(step, index):
    parts = [float(step + rank) for rank in range(RANKS) if index in used(step, rank)]
    return torch.full((SIZES[index],), sum(parts) / RANKS) if parts else None


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["a bucket each", "one bucket"])
@pytest.mark.parametrize("on_host", [False, True], ids=["flags in buckets", "flags of hosts"])
def test_missing_gradients_are_averaged_or_stay_none(on_host, bucket_bytes):
    for found, _ in run_ranks(
        lambda world: averages(world, on_host=on_host, bucket_bytes=bucket_bytes), RANKS
    ):
        for step, gradients in enumerate(found):
            for index, gradient in enumerate(gradients):
                wanted = expected(step, index)
                assert (gradient is None) == (wanted is None), (step, index)
                if wanted is not None:
                    torch.testing.assert_close(gradient, wanted)


def test_hosts_send_flags_only_while_a_rank_misses_gradients():
    agreements, rest = divmod(3 * AGREE_EVERY, AGREE_EVERY)
    assert rest == 0
    for _, maxima in run_ranks(lambda world: averages(world, on_host=True, bucket_bytes=1), RANKS):
        assert maxima == agreements + 2 * AGREE_EVERY  # none before the second agreement
    for _, maxima in run_ranks(lambda world: averages(world, on_host=False, bucket_bytes=1), RANKS):
        assert maxima == 0
