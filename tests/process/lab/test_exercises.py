"""Functions of the exercises: the solutions pass on 1 to 5 ranks, and the wrong ones are named by code."""

import json
import re
import shutil

import pytest
import typer

from gallery_exercises.manifest import FUNCTIONS, path_of
from samestep_lab.command import grade
from samestep_lab.exercises.grading import grade_file
from samestep_lab.exercises.starters import EXERCISES, SOLUTIONS, file_stem
from support.tiers import long_param, mostly_long

RANKS = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", [name for name, one in EXERCISES.items() if one.function])
def test_a_solution_passes(name):
    (result,) = grade_file(SOLUTIONS / f"{file_stem(name)}.py", RANKS, verify=None)

    assert (result.name, result.faults) == (EXERCISES[name].function, [])


SHORT = (
    *("whole_tensor_ring", "forgotten_receive", "own_twice", "changed_beside_the_root", "zeroing_broadcast"),
    *("always_from_rank_0", "mean_without_division"),
)
"""A function with each fault, but for an error, which `float32_buffers` below has."""


@pytest.mark.parametrize("name", mostly_long(FUNCTIONS, SHORT))
def test_a_wrong_function_is_named(name):
    (result,) = grade_file(path_of(name), RANKS, verify=None, timeout_s=3.0)

    assert tuple(fault.code for fault in result.faults) == FUNCTIONS[name]


def test_a_ring_of_whole_tensors_is_reported_with_its_figures():
    (result,) = grade_file(path_of("whole_tensor_ring"), [2, 4], verify=None)
    bits, volume = result.faults

    assert (bits.ranks, volume.ranks) == (4, 4)
    assert "3.00" in volume.text
    assert "1.50" in volume.text


def test_a_wrong_sum_is_reported_with_the_weight_of_each_rank():
    (mean,) = grade_file(path_of("divided_by_one_less"), [3], verify=None)
    (total,) = grade_file(path_of("own_twice"), [3], verify=None)

    assert re.findall(r"rank (\d)'s ([\d.]*\d)", mean.faults[0].text) == [
        ("0", "0.5"),
        ("1", "0.5"),
        ("2", "0.5"),
    ]
    assert re.findall(r"rank (\d)'s ([\d.]*\d)", total.faults[0].text) == [("0", "2"), ("1", "1"), ("2", "1")]


def test_a_gather_in_wrong_order_is_reported_with_the_ranks():
    (result,) = grade_file(path_of("in_order_of_arrival"), [2], verify=None)

    assert re.findall(r"rank (\d)", result.faults[0].text.partition("root 1")[2]) == ["1", "0", "1"]


@pytest.mark.parametrize(("name", "line"), [long_param("no_modulo", 13), ("float32_buffers", 16)])
def test_an_error_that_gloo_does_not_raise_is_reported_with_its_line(name, line):
    (result,) = grade_file(path_of(name), [2], verify=None, timeout_s=3.0)

    assert f"{name}.py:{line}" in result.faults[0].text


def test_a_deadlock_is_reported_with_its_lines():
    (result,) = grade_file(path_of("both_send_first"), [2], verify=None, timeout_s=3.0)

    assert result.faults[0].text.count("both_send_first.py:11") == 2


COURSE = """
from __future__ import annotations
import no_such_package
import torch as t
import torch.distributed as dist

MAIN = __name__ == "__main__"
assert t.cuda.device_count() > 1000
options = no_such_package.parse()

def broadcast(tensor: Tensor, rank: int, world_size: int, src: int = 0):
    if rank == src:
        for other_rank in range(world_size):
            if other_rank != src:
                dist.send(tensor, dst=other_rank)
    else:
        received = t.zeros_like(tensor)
        dist.recv(received, src=src)
        tensor.copy_(received)

if MAIN:
    tests.test_broadcast(broadcast, 2)
no_such_package.train()
"""


def test_a_file_of_a_course_is_graded_unchanged(tmp_path):
    path = tmp_path / "course.py"
    path.write_text(COURSE)
    (result,) = grade_file(path, [1, 3], verify=None)

    assert (result.name, result.faults) == ("broadcast", [])


def test_the_command_prints_all_functions_of_a_file_and_its_exit_code(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    shutil.copy(SOLUTIONS / "broadcast.py", mine)
    app = typer.Typer()
    app.command()(grade)
    command = typer.main.get_command(app)

    assert command([str(mine), "--ranks", "2", "--json"], standalone_mode=False) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["passed"], [one["name"] for one in answer["grades"]]) == (True, ["broadcast"])

    mine.write_text(
        mine.read_text() + path_of("zeroing_broadcast").read_text().replace("broadcast(", "all_reduce(")
    )
    assert command([str(mine), "--ranks", "2", "--json"], standalone_mode=False) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [one["passed"] for one in answer["grades"]] == [True, False]
    assert answer["grades"][1]["faults"][0]["code"] == "only-zeros"
    assert command([str(mine), "--ranks", "2"], standalone_mode=False) == 1
    assert "only-zeros" in capsys.readouterr().out
