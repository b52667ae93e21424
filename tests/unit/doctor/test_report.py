"""The report shows equal values once, and differing values with their ranks."""

from samestep.doctor.context import Finding
from samestep.doctor.report import finding_lines, folded, row_lines
from samestep.ranks.hang.detection import format_ranks

HOSTS = {0: "a", 1: "a", 2: "b"}


def test_values_that_all_ranks_share_are_shown_once():
    rows = {rank: [("back end", "gloo"), ("memory", "1 GiB")] for rank in range(3)}
    assert folded(rows) == [("back end", "gloo"), ("memory", "1 GiB")]


def test_ranks_that_differ_are_named():
    rows = {0: [("threads", "4")], 1: [("threads", "4")], 2: [("threads", "1"), ("", "why")]}
    assert folded(rows) == [("threads", "ranks 0-1: 4"), ("", "rank 2: 1"), ("", "  why")]


def test_a_rank_without_a_row_is_shown_with_none():
    rows = {0: [("host", "a")], 1: [("host", "a"), ("outer", "slurm")]}
    assert folded(rows) == [("host", "a"), ("outer", "rank 0: none"), ("", "rank 1: slurm")]


def test_variables_are_folded_one_by_one():
    rows = {rank: [("because", f"RANK={rank}"), ("", "WORLD_SIZE=2")] for rank in range(2)}
    assert folded(rows) == [("because", "RANK=0 on rank 0, 1 on rank 1"), ("", "WORLD_SIZE=2")]


def test_a_variable_that_differs_on_a_thousand_ranks_is_one_line():
    rows = {rank: [("because", f"RANK={rank}"), ("", "WORLD_SIZE=1000")] for rank in range(1000)}
    first, second = folded(rows)
    assert len(first[1]) < 120
    assert second == ("", "WORLD_SIZE=1000")


def test_equal_findings_are_merged_and_problems_come_first():
    note, problem = Finding(text="a note", hurts=False), Finding(text="a problem")
    owned = [((0,), note), ((2,), problem), ((0,), problem), ((), Finding(text="of all"))]
    assert list(finding_lines(owned, HOSTS)) == [
        "problem (ranks 0, 2): a problem",
        "problem: of all",
        "note (rank 0 on a): a note",
    ]


def test_a_single_rank_is_not_named():
    assert list(finding_lines([((0,), Finding(text="it"))], {0: "a"})) == ["problem: it"]


def test_rows_are_aligned():
    assert list(row_lines([("place", "rank 0"), ("", "more"), ("x", "")])) == [
        "  place       rank 0",
        "              more",
        "  x",
    ]


def test_consecutive_ranks_are_shown_as_a_range():
    assert format_ranks([5, 3, 4]) == "ranks 3-5"
