"""The user selects the all-reduce of the gradients."""

import pytest

from samestep.base.errors import UsageError
from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.collectives.algorithms import by_algorithm, overlaps_compute
from samestep.ranks.world.solo import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from support.backward_cases import network


def test_a_world_of_one_has_no_algorithm():
    world = SoloWorld()
    assert by_algorithm(world, "ring") is world


@pytest.mark.parametrize("sync", ["flat", "ddp"])
def test_flat_and_ddp_refuse_an_algorithm(sync):
    def fn(world):
        with pytest.raises(UsageError, match=rf"sync='{sync}'.* ring"):
            replicate(network(), by_algorithm(world, "ring"), sync=sync)

    run_ranks(fn, 2)


def test_shared_memory_without_common_memory_is_refused():
    with pytest.raises(UsageError, match="--algorithm tree,shared_memory:64"):
        run_ranks(lambda world: by_algorithm(world, "tree,shared_memory:64"), 2)


@pytest.mark.parametrize(("text", "beside"), [("native", True), ("ring", False), ("native,ring:64", False)])
def test_only_the_native_all_reduce_overlaps_with_backward(text, beside):
    def fn(world):
        carrier = by_algorithm(world, text)
        with replicate(network(), carrier) as replicas:
            return overlaps_compute(carrier), replicas._synchronizer._config.may_overlap

    assert run_ranks(fn, 2) == [(beside, beside)] * 2
