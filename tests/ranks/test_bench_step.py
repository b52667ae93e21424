"""Ranks agree on the synchronizers to measure; rank 0 reports those that are not available."""

from samestep.cli.bench import chosen_synchronizers
from samestep.ranks.world.thread_world import run_ranks

CAN = ["reference", "bucketed", "exact"]


def test_all_available_synchronizers_are_measured_by_default(capsys):
    assert run_ranks(lambda world: chosen_synchronizers(world, []), 2) == [CAN] * 2
    assert run_ranks(lambda world: chosen_synchronizers(world, ["exact"]), 2) == [["exact"]] * 2
    assert capsys.readouterr().err == ""


def test_an_unavailable_synchronizer_is_reported_by_one_rank(capsys):
    assert run_ranks(lambda world: chosen_synchronizers(world, ["exact", "flat"]), 2) == [[], []]
    (line,) = capsys.readouterr().err.splitlines()
    assert "--sync flat" in line
    assert ", ".join(CAN) in line
