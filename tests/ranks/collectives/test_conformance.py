"""All algorithms pass the kit that anybody runs on theirs, and send no more than their cost models say."""

import pytest

from samestep.collectives.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    COSTS,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from samestep.testing import (
    check_all_gather,
    check_all_reduce,
    check_broadcast,
    check_gather,
    check_reduce,
    check_reduce_scatter,
    check_scatter,
)

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
    # Costs of gathers are in sizes of their result, which is that of all ranks' tensors.
    tensors = {"gather": lambda size: size, "all_gather": lambda size: size}.get(collective, lambda size: 1)

    check(algorithms[name], range(1, 9), sends=lambda size: cost(size).sent * tensors(size))


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather"])
def test_what_threads_have_of_their_own(collective):
    check, algorithms = KIT[collective]

    check(algorithms["native"], [1, 2, 5])


def test_a_kit_that_is_told_less_than_an_algorithm_sends_says_what_it_sends():
    with pytest.raises(AssertionError, match=r"rank 0 sends 3\.0\d times the tensor, more than 1\.50"):
        check_all_reduce(ALL_REDUCE["naive"], [4], sends=lambda size: 2 * (size - 1) / size)
