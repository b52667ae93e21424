"""What workers measure of steps is settled among them, and what they do not have is told once."""

from samestep.cli.bench_step import chosen
from samestep.world.threads import run_ranks

CAN = ["naive", "ring", "reference", "bucketed", "exact"]


def test_all_that_the_workers_have_is_measured_unless_they_are_told_what(capsys):
    assert run_ranks(lambda world: chosen(world, []), 2) == [CAN] * 2
    assert run_ranks(lambda world: chosen(world, ["ring"]), 2) == [["ring"]] * 2
    assert capsys.readouterr().err == ""


def test_what_they_do_not_have_is_told_by_one_of_them(capsys):
    assert run_ranks(lambda world: chosen(world, ["ring", "flat"]), 2) == [[], []]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "samestep: error: --sync flat needs ranks that share a host and compute on its processors. "
        f"Here can: {', '.join(CAN)}."
    )
