"""A cache with the results of another one returns these, and computes none again."""

from functools import lru_cache

import numpy as np
import pytest

from samestep.hooks.raw_containers import add_results, cached, results_in, results_of

CALLS = [
    ((1,), {}),
    ((2,), {}),
    ((1.5,), {}),
    (((1, 2),), {}),
    ((1, 2), {}),
    (("text",), {"b": 2}),
    ((3,), {"a": 1, "b": 2.0}),
    ((), {}),
]


def listed(*args, **kwargs):
    return [args, kwargs]


def following(*args, **_):
    return args[0] - 1 if args == (2,) else args


@pytest.mark.parametrize("compute", [listed, following])
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("maxsize", [128, 5, None])
def test_a_cache_has_the_results_of_another_one(compute, maxsize, typed):
    known = lru_cache(maxsize, typed)(compute)
    results = [known(*args, **kwargs) for args, kwargs in CALLS]
    made = cached(compute, known.cache_parameters())
    add_results(made, results_of(known))
    assert len(results_in(made)) == known.cache_info().currsize
    for (args, kwargs), result in [*zip(CALLS, results, strict=True)][-5:]:
        assert made(*args, **kwargs) is result
    assert made(7) == compute(7)


def test_a_cache_of_arrays_is_read():
    known = lru_cache(8)(np.arange)
    sizes = [len(known(2)), len(known(3))]
    assert [*results_in(known)] == sizes
    assert [len(array) for *_, array in results_of(known)] == sizes
