"""``samestep doctor`` speaks once, for people or machines, and its exit code says whether it hurts."""

import json
import socket
import sys

import pytest

from samestep.base import env
from samestep.cli.main import run_command
from support.recordings import recording


@pytest.fixture
def environment(monkeypatch):
    """Let the doctor see another environment than this process's."""

    def see(values):
        monkeypatch.setattr(env, "snapshot", lambda: dict(values))

    return see


def test_a_single_process_is_well(environment, capsys):
    environment({})
    assert run_command(["doctor"]) == 0

    shown = capsys.readouterr().out
    assert "rank 0 of 1" in shown
    assert "no launcher's variables are set" in shown
    assert "device      cpu" in shown


def test_what_hurts_is_shown_and_exits_with_1(environment, capsys):
    environment(recording("slurm_sbatch_script").environment)
    assert run_command(["doctor", "--no-devices"]) == 1
    assert "problem: Slurm job 5 has room for 4 tasks" in capsys.readouterr().out


def test_contradictory_variables_are_one_line_and_exit_with_2(environment, capsys):
    environment({"RANK": "2", "WORLD_SIZE": "2"})
    assert run_command(["doctor", "--no-devices"]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert "RANK=2" in line
    assert "WORLD_SIZE=2" in line


def test_only_rank_0_reports_where_all_is_well(environment, capsys):
    environment(recording("torchrun_one_host_rank1").environment | {"MASTER_ADDR": "127.0.0.1"})
    assert run_command(["doctor", "--no-devices"]) == 0

    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_a_problem_is_told_by_the_rank_that_has_it(environment, capsys):
    rank1 = recording("torchrun_one_host_rank1").environment | {"MASTER_ADDR": "no-such-host.invalid"}
    environment(rank1)
    assert run_command(["doctor", "--no-devices"]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith(
        f"rank 1 on {socket.gethostname()}: problem: no-such-host.invalid, the host of rank 0"
    )


def test_the_variables_that_decided_are_shown(environment, capsys):
    environment({**recording("torchrun_one_host_rank1").environment, "RANK": "0", "LOCAL_RANK": "0"})
    run_command(["doctor", "--no-devices"])

    shown = capsys.readouterr().out
    assert "LOCAL_WORLD_SIZE=2" in shown
    assert "meets at    localhost:40227" in shown


def test_json_is_one_object(environment, capsys):
    environment({**recording("torchrun_one_host_rank1").environment, "RANK": "0", "LOCAL_RANK": "0"})
    code = run_command(["doctor", "--json"])

    record = json.loads(capsys.readouterr().out)
    assert record["detected"]["place"]["size"] == 2
    assert record["detected"]["evidence"]["WORLD_SIZE"] == "2"
    assert record["backend"] == "gloo"
    assert record["machine"]["cpu"]["limited_by"]
    assert code == int(any(finding["hurts"] for finding in record["findings"]))


def test_without_torch_the_rest_is_still_said(environment, capsys, monkeypatch):
    environment({})
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run_command(["doctor"]) == 1

    shown = capsys.readouterr().out
    assert "rank 0 of 1" in shown
    assert "torch cannot be imported" in shown
