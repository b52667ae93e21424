"""Options of the command line become a request, or are refused."""

import pytest

from samestep.base.errors import UsageError
from samestep.studies.bench.request import BUCKET, Request, chosen, names_of, sizes_of


def test_sizes_are_powers_of_four_with_the_bucket_of_ddp_and_both_ends():
    whole = sizes_of(None, None, None)
    assert whole[:3] == (4, 16, 64)
    assert whole[-3:] == (BUCKET, 64 << 20, 256 << 20)
    assert sizes_of(None, "100", "1K") == (100, 256, 1024)
    assert sizes_of("1K,4,4", None, None) == (4, 1024)


@pytest.mark.parametrize(
    ("asked", "named"),
    [(("4", "8", None), r"--sizes .* --min .* --max"), ((None, "8", "4"), r"--min 8 .* --max 4")],
)
def test_sizes_that_contradict_each_other_are_refused(asked, named):
    with pytest.raises(UsageError, match=named):
        sizes_of(*asked)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dtype": "int3"}, "--dtype 'int3' .*float32"),
        ({"rounds": 0}, "--rounds 0"),
        ({"seconds": 0.0}, "--seconds 0"),
        ({"seconds": float("nan")}, "--seconds nan"),
        ({"timeout_s": 0.0}, "--hang-timeout 0"),
    ],
)
def test_invalid_requests_are_refused(fields, named):
    with pytest.raises(UsageError, match=named):
        Request(collective="all_reduce", sizes=(4,), **fields)


def test_algorithms_are_the_requested_ones_or_all():
    available = ["native", "ring", "halving_doubling"]
    assert names_of("halving-doubling,ring,ring") == ("halving_doubling", "ring")
    assert chosen((), available, "all_reduce") == tuple(available)
    assert chosen(("ring",), available, "all_reduce") == ("ring",)
    with pytest.raises(UsageError, match=r"tre: .*all_reduce .*native, ring, halving_doubling"):
        chosen(("tre",), available, "all_reduce")
    with pytest.raises(UsageError, match="shared_memory"):
        chosen(("shared_memory",), available, "all_reduce")
