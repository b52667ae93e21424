"""``samestep doctor`` prints one report, as text or JSON, and its exit code is 1 with a problem."""

import json
import re
import socket
import sys

import pytest

from samestep.base import env
from samestep.cli.main import run_command
from support.recordings import recording


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Return a function that sets the environment that the doctor reads; the run folder is temporary."""
    monkeypatch.chdir(tmp_path)

    def set_to(values):
        monkeypatch.setattr(env, "snapshot", lambda: dict(values))

    return set_to


@pytest.fixture
def rank_alone(environment):
    """Return a function that makes this process a rank of two on one host, without the other."""

    def set_to(rank, **changes):
        here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment({**recording("torchrun_one_host_rank1").environment, **here, **master, **changes})

    return set_to


def test_a_single_process_reports_itself(environment, capsys):
    environment({})
    code = run_command(["doctor"])

    shown = capsys.readouterr().out
    assert code == int("problem:" in shown)
    assert "rank 0 of 1" in shown
    assert "no launcher's variables are set" in shown
    assert "device      cpu" in shown
    assert "fsync, rename and lock work" in shown


@pytest.mark.parametrize(
    ("variables", "count"), [({}, 0), ({"FORCE_COLOR": "1"}, 1), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, 0)]
)
def test_a_problem_has_its_color_on_a_terminal_only(environment, capsys, monkeypatch, variables, count):
    environment(recording("slurm_sbatch_script").environment)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    run_command(["doctor", "--no-devices"])

    out = capsys.readouterr().out
    assert (out.count("\x1b[1;31mproblem\x1b[0m"), "\x1b" in out) == (count, bool(count))


def test_a_problem_is_printed_and_exits_with_1(environment, capsys):
    environment(recording("slurm_sbatch_script").environment)
    assert run_command(["doctor", "--no-devices"]) == 1
    assert re.search("problem: .*job 5 .*4 tasks", capsys.readouterr().out)


def test_contradictory_variables_are_one_line_and_exit_with_2(environment, capsys):
    environment({"RANK": "2", "WORLD_SIZE": "2"})
    assert run_command(["doctor", "--no-devices"]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert "RANK=2" in line
    assert "WORLD_SIZE=2" in line


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--ticket"], ["--ticket", "--json"]),
        (["--clean"], ["--clean"]),
        (["--wait", "-1"], ["--wait", "-1"]),
        (["-n", "0"], ["-n 0"]),
    ],
)
def test_wrong_flags_are_one_line_and_exit_with_2(environment, capsys, flags, named):
    environment({})
    assert run_command(["doctor", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(text in line for text in named)


def test_one_task_on_each_node_starts_the_workers_there(environment, monkeypatch):
    environment(recording("slurm_step_4x1_rank3").environment)
    decisions = []
    monkeypatch.setattr("samestep.cli.doctor.execute", lambda decision: decisions.append(decision) or 0)
    assert run_command(["doctor", "-n", "8", "--json"]) == 0

    (decision,) = decisions
    assert (decision.plan.local, decision.plan.nodes.count, decision.plan.nodes.rank) == (2, 4, 3)
    assert decision.job.program.args[:2] == ("doctor", "--json")
    assert "-n" not in decision.job.program.args


def test_rank_0_names_a_missing_rank(rank_alone, capsys):
    rank_alone(0)
    assert run_command(["doctor", "--no-devices", "--wait", "0.2"]) == 1

    shown = capsys.readouterr().out
    assert "problem: rank 1 of 2 " in shown
    assert "LOCAL_WORLD_SIZE=2" in shown
    assert " 127.0.0.1:" in shown


def test_a_rank_that_does_not_reach_rank_0_prints_its_problems_itself(rank_alone, capsys):
    rank_alone(1)
    assert run_command(["doctor", "--no-devices", "--wait", "0.2"]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert all(line.startswith(f"rank 1 on {socket.gethostname()}: problem: ") for line in lines)
    assert any("rank 0" in line and "127.0.0.1:" in line for line in lines)


def test_an_unresolvable_master_is_reported_once(rank_alone, capsys):
    rank_alone(1, MASTER_ADDR="no-such-host.invalid")
    assert run_command(["doctor", "--no-devices", "--wait", "0.2"]) == 1
    assert capsys.readouterr().err.count("no-such-host.invalid") == 1


def test_json_is_one_object(environment, capsys):
    environment({})
    code = run_command(["doctor", "--json"])

    record = json.loads(capsys.readouterr().out)
    (rank,) = record["ranks"]
    assert rank["place"]["size"] == 1
    assert rank["processors"]["limited_by"]
    assert rank["folder"]["failed"] == {}
    assert record["hurts"] == any(finding["hurts"] for finding in record["findings"])
    assert code == int(record["hurts"])


def test_without_torch_the_rest_is_still_reported(environment, capsys, monkeypatch):
    environment({})
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run_command(["doctor"]) == 1

    shown = capsys.readouterr().out
    assert "rank 0 of 1" in shown
    assert "problem: torch " in shown
