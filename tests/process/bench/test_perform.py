"""Collectives are measured on real processes, and wrong algorithms are reported."""

from unittest.mock import patch

import torch

from samestep.ranks.collectives.algorithms import ALL_REDUCE
from samestep.studies.bench.cases import COLLECTIVES
from samestep.studies.bench.measurement import perform
from samestep.studies.bench.request import COLLECTIVES as NAMES
from samestep.studies.bench.request import DTYPES, Request


def of_all(world, names=NAMES):
    """Measure collectives at tiny sizes; return the wrong algorithms and the rows."""
    reports = [
        perform(world, Request(collective=name, sizes=(6, 4096), rounds=1, seconds=0.01)) for name in names
    ]
    return [(name, report.wrong, report.rows) for name, report in zip(names, reports, strict=True)]


def of_types(world):
    return [
        (dtype, perform(world, Request(collective="all_reduce", sizes=(100,), dtype=dtype, rounds=1)).wrong)
        for dtype in DTYPES
    ]


def _twice_the_first(world, tensor, op):
    ALL_REDUCE["ring"](world, tensor, op)
    if world.place.is_main:
        tensor[:1] *= 2


def _other_bits(world, tensor, op):
    ALL_REDUCE["ring"](world, tensor, op)
    tensor *= 1 + world.place.rank * torch.finfo(tensor.dtype).eps


def _not_a_number(world, tensor, op):
    tensor.fill_(float("nan"))


def _raises(world, tensor, op):
    raise ZeroDivisionError("of no use")


BROKEN = {"twice": _twice_the_first, "bits": _other_bits, "nan": _not_a_number, "raises": _raises}


def of_broken(world):
    request = Request(
        collective="all_reduce", sizes=(64, 4096), algorithms=("native", *BROKEN), rounds=1, seconds=0.01
    )
    with patch.dict(ALL_REDUCE, BROKEN):
        report = perform(world, request)
    return {one.algorithm: (one.bytes, one.problem) for one in report.wrong}, {
        row.algorithm for row in report.rows
    }


def test_every_collective_is_correct_and_timed_with_all_its_algorithms(processes):
    for name, wrong, rows in processes.run(of_all, 2)[0]:
        assert wrong == []
        assert [(row.algorithm, row.bytes) for row in rows] == [
            (algorithm, nbytes) for nbytes in (8, 4096) for algorithm in COLLECTIVES[name].algorithms
        ]
        assert all(row.median_s > 0 and row.limit_share > 0 for row in rows)


def test_every_type_is_correct(processes):
    assert processes.run(of_types, 2)[1] == [(dtype, []) for dtype in DTYPES]


def test_a_wrong_algorithm_is_reported_and_not_timed(processes):
    for wrong, timed in processes.run(of_broken, 2):
        assert timed == {"native"}
        assert {name: nbytes for name, (nbytes, _) in wrong.items()} == dict.fromkeys(BROKEN, 64)
        assert "on rank 0, element 0 is " in wrong["twice"][1]
        assert "(1 of 16 around it are wrong)" in wrong["twice"][1]
        assert wrong["bits"][1] == "the ranks end with different bits"
        assert "element 0 is nan" in wrong["nan"][1]
        assert wrong["raises"][1] == "on rank 0, ZeroDivisionError: of no use"


def test_sizes_that_the_ranks_do_not_divide_are_correct(processes):
    for _, wrong, _ in processes.run(of_all, 3, ("all_reduce", "scatter"))[0]:
        assert wrong == []
