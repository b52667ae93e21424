"""Commands check the number of workers before they start any; a dry run prints what would be started."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from samestep.base import console
from samestep.base.machine import description
from samestep.cli.main import run_command
from samestep.launch.job import Nodes
from samestep.launch.plan import Spawn
from samestep.run import decision as decisions
from samestep.run.decision import oversubscription


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run ``samestep run --dry-run`` on a script with the given text; return the exit code and stderr."""
    monkeypatch.chdir(tmp_path)

    def command(text, *arguments):
        (tmp_path / "train.py").write_text(text)
        code = run_command(["run", "--dry-run", "train.py", *arguments])
        return code, capsys.readouterr().err.splitlines()

    return command


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["-n", "2"], "samestep run -n 2 --dry-run train.py"),
        (["--num_processes", "2"], "samestep run --num_processes 2 --dry-run train.py"),
        (["--x", "--nproc_per_node=2", "y"], "samestep run --nproc_per_node=2 --dry-run train.py --x y"),
    ],
)
def test_a_number_of_workers_after_the_script_is_refused_with_the_right_command(refused, arguments, meant):
    code, lines = refused("import torch\n", *arguments)

    assert code == 2
    (line,) = lines
    assert line.endswith(meant)


@pytest.mark.parametrize(
    "text",
    [
        "import argparse, torch\nargparse.ArgumentParser().add_argument('-n')\n",
        "import sys, torch\nprint(sys.argv)\n",
        "from sys import argv\n",
        "import fire, torch\nfire.Fire(print)\n",
    ],
)
def test_a_script_that_has_the_option_itself_is_started(refused, text):
    assert refused(text, "-n", "2") == (0, [])


def test_oversubscription_is_reported_with_the_largest_number_of_workers(monkeypatch, tmp_path, capsys):
    made = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.setattr("samestep.cli.run.dry_run_lines", lambda decision: made.append(decision) or [])
    run_command(["run", "--dry-run", "-n", "4", "train.py"])
    monkeypatch.setattr(decisions, "cpu_share", lambda: SimpleNamespace(usable=3))

    assert "-n 3" in oversubscription(made[0])
    nodes = Spawn(local=4, nodes=Nodes(count=2, rank=0, endpoint="a:29500"))
    assert "--nproc-per-node 3" in oversubscription(replace(made[0], plan=nodes))
    monkeypatch.setattr(decisions, "cpu_share", lambda: SimpleNamespace(usable=4))
    assert oversubscription(made[0]) == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run --oversubscribe --dry-run -n 100 train.py", 0),
        ("run --oversubscribe --dry-run -n 101 train.py", 2),
        ("run --oversubscribe --dry-run -n 101 --no-python true", 0),
        ("verify --oversubscribe -n 1,101 train.py", 2),
        ("bench all-reduce --oversubscribe -n 101", 2),
    ],
)
def test_workers_that_exceed_the_memory_are_refused(monkeypatch, tmp_path, capsys, command, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.setattr(description, "memory_bytes", lambda: 100 * description._LEAST_WORKER_BYTES)

    assert run_command(command.split()) == code
    assert ("101 workers on this node" in capsys.readouterr().err) == (code == 2)


def test_a_dry_run_warns_of_more_workers_than_cores(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")

    found = {}
    for usable in (3, 4):
        monkeypatch.setattr(decisions, "cpu_share", lambda usable=usable: SimpleNamespace(usable=usable))
        found[usable] = (
            run_command(["run", "--dry-run", "-n", "4", "--threads", "1", "train.py"]),
            [line for line in capsys.readouterr().err.splitlines() if "-n 3" in line],
        )

    assert [(code, len(warnings)) for code, warnings in found.values()] == [(0, 1), (0, 0)]


def test_a_dry_run_quotes_its_command_for_a_shell(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")

    run_command(["run", "--dry-run", "train.py", "two words"])

    assert "train.py 'two words'\n" in capsys.readouterr().out


def test_quiet_prints_errors_only(monkeypatch, capsys):
    monkeypatch.setenv("SAMESTEP_QUIET", "1")
    console.inform("the usual course")
    console.log("an error")

    assert capsys.readouterr().err == "samestep: an error\n"
