"""Processes that sum through shared memory have the same bits as one process."""

import functools
import re
from itertools import product
from unittest.mock import patch

import pytest
import torch

from samestep.base.errors import OutOfStep
from samestep.parallel.exact import logical_shards as exact_shards
from samestep.parallel.exact.summation_tree import ShardReduction, TreeSum
from samestep.ranks.collectives.shared_memory import OneHostWorld, on_one_host
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.networks import build
from support.hand_made_shards import LARGE, LARGE_DIGESTS, digest_of
from support.tiers import mostly_long
from support.training import digits, settings, train


def train_exact(world, name, precision, optimizer):
    chosen = settings(epochs=1, batch_size=24, exact=4, precision=precision, optimizer=optimizer, lr=1e-3)
    make_model = functools.partial(build, name, shape=(1, 8, 8), classes=10)
    torch.set_num_threads(1)
    memory = train(world, chosen, make_model, digits(60, 20))
    return memory.result.weights_sha256


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


TRAININGS = list(product(("convnet", "resnet18"), ("sgd", "adamw"), ("fp32", "bf16")))
SHORT = ("convnet-adamw-fp32", "convnet-sgd-bf16")


@pytest.mark.parametrize("training", mostly_long(TRAININGS, SHORT, "-".join))
@pytest.mark.usefixtures("one_thread")
def test_processes_end_with_the_bits_of_one(processes, training):
    name, optimizer, precision = training
    alone = train_exact(SoloWorld(), name, precision, optimizer)

    for size in (2, 3, 4) if name == "convnet" else (3,):
        assert processes.run(train_exact, size, name, precision, optimizer) == [alone] * size


def both_ways(world, shards):
    """Return the digests of sums through shared memory and through messages."""
    assert isinstance(on_one_host(world), OneHostWorld)
    with patch.object(exact_shards, "on_one_host", lambda world: world):
        by_messages = digest_of(world, shards, LARGE)
    return digest_of(world, shards, LARGE), by_messages


@pytest.mark.parametrize("shards", LARGE_DIGESTS)
def test_sums_of_processes_have_the_bits_of_whole_nodes(processes, shards):
    assert processes.run(both_ways, 3, shards) == [(LARGE_DIGESTS[shards],) * 2] * 3


def differing(world):
    """Return the error of this rank, whose sum has another size than the other rank's."""
    rank, tree = world.place.rank, TreeSum(2)
    tree.add((rank, rank + 1), [torch.ones(3 + rank)])
    with pytest.raises(OutOfStep) as caught:
        ShardReduction(world, 2).total(tree)
    return str(caught.value)


def test_both_ranks_report_sums_of_different_sizes(processes):
    for message in processes.run(differing, 2):
        assert re.search(r"rank 0 .*exact sum.* float32 \[3\]", message)
        assert re.search(r"rank 1 .*exact sum.* float32 \[4\]", message)
