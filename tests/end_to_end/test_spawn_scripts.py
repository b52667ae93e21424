"""Scripts that call `torch.multiprocessing.spawn`: samestep starts, watches and clocks their workers."""

from pathlib import Path

import pytest

from support.forked_commands import samestep

GALLERY = Path(__file__).parents[1] / "gallery_spawn"
BY_FLAG, BY_COUNT = GALLERY / "spawns_by_flag.py", GALLERY / "spawns_by_count.py"
ON_CPU = ("--device", "cpu")


def run(*arguments, n=2):
    return samestep("run", "-n", n, *ON_CPU, *arguments)


@pytest.mark.parametrize("number", [2, 3])
def test_the_number_of_workers_is_a_template_in_the_scripts_flags(number):
    ended = run(BY_FLAG, "--gpus", "{n}", n=number)

    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()] == ["epoch", "epoch", "after"]


def test_the_script_sees_as_many_gpus_as_workers_were_asked_for():
    ended = run(BY_COUNT, n=3)

    assert (ended.code, ended.out) == (0, "[3.0, 3.0, 3.0]\njoined\n"), ended.err


def test_without_a_number_the_script_decides():
    ended = samestep("run", *ON_CPU, BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err


def test_another_number_than_asked_for_is_refused_in_one_line():
    ended = run(BY_FLAG, "--gpus", 3)

    assert ended.code == 2
    assert "-n 3" in ended.err
    assert "{n}" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("option", ["--count", "--sanitize"])
def test_its_workers_are_observed(option):
    ended = run(option, BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err
    assert option != "--count" or "8 steps, 64 samples in training" in ended.err


def test_the_steps_of_its_workers_are_clocked(tmp_path):
    ended = run("--clock", tmp_path / "clock", BY_FLAG, "--gpus", 2)

    assert ended.code == 0, ended.err
    assert len(list((tmp_path / "clock").glob("*rank*"))) == 2


def test_a_worker_that_fails_ends_the_others_and_is_named():
    ended = run(BY_FLAG, "--gpus", 2, "--fail", 1)

    assert ended.code == 1
    assert "rank 1 of 2" in ended.err
    assert "RuntimeError: asked to fail" in ended.err
    assert "after the training" not in ended.out


def test_a_hang_names_the_ranks_and_lines():
    ended = run("--hang-timeout", 3, BY_FLAG, "--gpus", 2, "--hang", 0)

    assert ended.code == 1
    assert "spawns_by_flag.py:27" in ended.err
