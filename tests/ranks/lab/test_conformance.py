"""All algorithms pass the conformance kit, and send no more than their cost models."""

import pytest

from samestep_lab.collectives.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from samestep_lab.testing import (
    check_all_gather,
    check_all_reduce,
    check_broadcast,
    check_gather,
    check_reduce,
    check_reduce_scatter,
    check_scatter,
)
from support.collective_costs import COSTS

KIT = {
    "all_reduce": (check_all_reduce, ALL_REDUCE),
    "broadcast": (check_broadcast, BROADCAST),
    "all_gather": (check_all_gather, ALL_GATHER),
    "reduce": (check_reduce, REDUCE),
    "reduce_scatter": (check_reduce_scatter, REDUCE_SCATTER),
    "gather": (check_gather, GATHER),
    "scatter": (check_scatter, SCATTER),
}
SCHEDULES = [(collective, name) for collective, costs in COSTS.items() for name in costs]


@pytest.mark.parametrize(("collective", "name"), SCHEDULES)
def test_schedules(collective, name):
    check, algorithms = KIT[collective]
    cost = COSTS[collective][name]
    # The cost of a gather is in sizes of its result: the tensors of all ranks.
    tensors = {"gather": lambda size: size, "all_gather": lambda size: size}.get(collective, lambda size: 1)

    sends = {"sends": lambda size: cost(size).sent * tensors(size)}
    check(algorithms[name], range(1, 9), any_layout=True, **sends)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather"])
def test_back_end_of_threads(collective):
    check, algorithms = KIT[collective]

    check(algorithms["native"], [1, 2, 5], any_layout=True)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather"])
def test_shared_memory_of_one_rank_does_nothing_as_the_others_do(collective):
    check, algorithms = KIT[collective]

    check(algorithms["shared_memory"], [1], any_layout=True)


def test_sending_more_than_the_given_volume_is_reported_with_the_measured_one():
    with pytest.raises(AssertionError, match=r"rank 0 .*\b3\.0\d.*\b1\.50"):
        check_all_reduce(ALL_REDUCE["naive"], [4], sends=lambda size: 2 * (size - 1) / size)


@pytest.mark.parametrize(
    "returned",
    [
        lambda tensor, size: tensor,  # has no length where it has no dimension
        lambda tensor, size: [None] * size,
        lambda tensor, size: [tensor.tolist()] * size,
    ],
    ids=["its own tensor", "nothing", "numbers"],
)
def test_anything_but_a_tensor_for_each_rank_is_a_wrong_return(returned):
    faults = check_all_gather.faults(lambda tensor, world: returned(tensor, world.place.size), [2])
    assert "wrong-return" in [fault.code for fault in faults]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_results_that_are_not_finite_are_counted_as_wrong(value):
    def spoils(tensor, world):
        ALL_REDUCE["ring"](world, tensor, "sum")
        if tensor.is_floating_point():
            tensor.view(-1)[:1] = value

    (fault,) = check_all_reduce.faults(spoils, [2], ops=["sum"])
    assert fault.code == "wrong-values"
    assert "wrong: 1 of " in fault.text
