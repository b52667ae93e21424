"""The sums of shards are reduced in slices, with the bits of sums over whole nodes."""

import pytest
import torch

from samestep.parallel.exact.summation_tree import ShardReduction, TreeSum, fold
from samestep.parallel.sharding import share
from samestep.ranks.collectives.consistency_check import MESSAGE, steps
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep_lab.testing.checks import CountingWorld
from support.hand_made_shards import DIGESTS, digest_of

ELEMENTS = 840  # divisible by 2, 3, 4, 7 and 8 ranks


@pytest.mark.parametrize("shards", DIGESTS)
def test_sums_have_the_bits_of_sums_over_whole_nodes(shards):
    assert digest_of(SoloWorld(), shards) == DIGESTS[shards]
    for size in {2, 3, 4, 8} & set(range(shards + 1)):
        assert run_ranks(digest_of, size, shards) == [DIGESTS[shards]] * size


def sent(world, shards):
    """Return the number of this rank's nodes, and the bytes and messages that it sends to sum them."""
    counting, tree = CountingWorld(world), TreeSum(shards)
    for leaf in share(shards, world.place.rank, world.place.size):
        tree.add((leaf, leaf + 1), [torch.ones(ELEMENTS - 40), torch.ones(40)])
    nodes = len(tree.nodes)
    row = ShardReduction(counting, shards).total(tree)
    assert all((part == shards).all() for part in row)
    return nodes, counting.sent, counting.messages


@pytest.mark.parametrize(("size", "shards"), [(2, 6), (3, 8), (4, 8), (7, 8), (8, 8)])
def test_each_rank_sends_its_slices_and_one_slice_to_each_other_rank(size, shards):
    for nodes, nbytes, messages in run_ranks(sent, size, shards):
        slices = (nodes + 1) * (size - 1) * ELEMENTS * 4 // size
        assert nbytes == slices + steps(size) * MESSAGE
        assert messages == 2 * (size - 1) + steps(size)


def folded(world, count):
    """Return numbers that encode the order in which parts of ranks with unequal numbers are passed."""
    rank, counts = world.place.rank, [2, 1, 3][: world.place.size]
    parts = [torch.full((count,), 10.0 * rank + row, dtype=torch.float64) for row in range(counts[rank])]

    def digits(nodes, out):
        written = torch.zeros_like(out)
        for node in nodes:
            written = written * 100 + node
        out.copy_(written)

    fold(world, parts, counts, digits)
    return parts[0].tolist()


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (2, 110), (3, 110202122)])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_all_parts_are_passed_in_order(size, expected, count):
    assert run_ranks(folded, size, count) == [[expected] * count] * size
