"""``samestep doctor`` speaks once, for people or machines, and its exit code says whether it hurts."""

import json
import socket
import sys

import pytest

from samestep.base import env
from samestep.cli.main import run_command
from support.recordings import recording


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Let the doctor see another environment than this process's, and a run folder of its own."""
    monkeypatch.chdir(tmp_path)

    def see(values):
        monkeypatch.setattr(env, "snapshot", lambda: dict(values))

    return see


@pytest.fixture
def rank_alone(environment):
    """Be a rank of two of one host whose other one is not there."""

    def see(rank, **changes):
        here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment({**recording("torchrun_one_host_rank1").environment, **here, **master, **changes})

    return see


def test_a_single_process_is_told_of_itself(environment, capsys):
    environment({})
    code = run_command(["doctor"])

    shown = capsys.readouterr().out
    assert code == int("problem:" in shown)
    assert "rank 0 of 1" in shown
    assert "no launcher's variables are set" in shown
    assert "device      cpu" in shown
    assert "fsync, rename and lock work" in shown


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


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--json", "--ticket"], "give one of the two"),
        (["--wait", "-1"], "no time to wait"),
        (["-n", "0"], "-n 0"),
    ],
)
def test_flags_that_make_no_sense_are_one_line_and_exit_with_2(environment, capsys, flags, says):
    environment({})
    assert run_command(["doctor", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_one_task_on_each_node_starts_the_workers_there(environment, monkeypatch):
    environment(recording("slurm_step_4x1_rank3").environment)
    decisions = []
    monkeypatch.setattr("samestep.cli.doctor.act", lambda decision: decisions.append(decision) or 0)
    assert run_command(["doctor", "-n", "8", "--ticket"]) == 0

    (decision,) = decisions
    assert (decision.plan.local, decision.plan.nodes.count, decision.plan.nodes.rank) == (2, 4, 3)
    assert decision.job.program.args[:2] == ("doctor", "--ticket")
    assert "-n" not in decision.job.program.args


def test_rank_0_names_a_rank_that_does_not_come(rank_alone, capsys):
    rank_alone(0)
    assert run_command(["doctor", "--no-devices", "--wait", "0.2"]) == 1

    shown = capsys.readouterr().out
    assert "problem: rank 1 of 2 did not come" in shown
    assert "LOCAL_WORLD_SIZE=2" in shown
    assert "meets at    127.0.0.1:" in shown


def test_a_rank_that_does_not_reach_rank_0_tells_its_problems_itself(rank_alone, capsys):
    rank_alone(1)
    assert run_command(["doctor", "--no-devices", "--wait", "0.2"]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    who = f"rank 1 on {socket.gethostname()}: problem: "
    assert all(line.startswith(who) for line in shown.err.splitlines())
    assert f"{who}The other ranks could not be asked: rank 0 did not answer at 127.0.0.1:" in shown.err


def test_an_unresolvable_master_is_told_once(rank_alone, capsys):
    rank_alone(1, MASTER_ADDR="no-such-host.invalid")
    assert run_command(["doctor", "--no-devices", "--wait", "0.2"]) == 1
    assert capsys.readouterr().err.count("no-such-host.invalid, the host of rank 0") == 1


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


def test_a_ticket_can_be_pasted_and_holds_no_secret(environment, capsys, tmp_path, monkeypatch):
    home = tmp_path / "ada"
    home.mkdir()
    monkeypatch.chdir(home)
    environment(
        {"HOME": str(home), "USER": "ada", "HF_TOKEN": "hf_secret_one", "NCCL_DEBUG": "hf_secret_one"}
    )
    run_command(["doctor", "--ticket"])

    shown = capsys.readouterr().out
    assert shown.startswith("```\n")
    assert shown.endswith("\n```\n")
    assert "HF_TOKEN=***" in shown
    assert "NCCL_DEBUG=***" in shown
    assert "run folder  ~ (" in shown
    assert "hf_secret_one" not in shown
    assert str(home) not in shown


def test_without_torch_the_rest_is_still_said(environment, capsys, monkeypatch):
    environment({})
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run_command(["doctor"]) == 1

    shown = capsys.readouterr().out
    assert "rank 0 of 1" in shown
    assert "torch cannot be imported" in shown
