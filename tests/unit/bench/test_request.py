"""Options of the command line become a request, or are refused."""

import pytest

from samestep.base.errors import UsageError
from samestep.bench.figures import BUCKET, Request, sizes_of


def test_sizes_are_sorted_and_those_of_a_parameter_and_of_a_bucket_by_default():
    assert sizes_of("1K,4,4") == (4, 1024)
    assert {4, BUCKET} < {*sizes_of(None)}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seconds": 0.0}, "--seconds is 0"),
        ({"seconds": float("nan")}, "--seconds is nan"),
    ],
)
def test_invalid_requests_are_refused(fields, named):
    with pytest.raises(UsageError, match=named):
        Request(collective="all_reduce", sizes=(4,), **fields)
