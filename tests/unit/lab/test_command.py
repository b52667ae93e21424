"""``samestep lab``: its list, its commands and what it refuses."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from samestep.cli import main
from samestep.cli.main import run_command
from samestep.report.charts import Bar, BarChart
from samestep.report.drawing import color
from samestep_lab.exercises.starters import EXERCISES
from samestep_lab.experiments import text, training_runs
from samestep_lab.experiments.experiment import Outcome, Table, interval_text, mean_and_half
from samestep_lab.experiments.registry import EXPERIMENTS


def test_every_experiment_and_exercise_is_listed(capsys):
    assert run_command(["lab"]) == 0

    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    listed = [[name, experiment.question] for name, experiment in EXPERIMENTS.items()]
    listed += [[name, exercise.summary] for name, exercise in EXERCISES.items()]
    assert [line for line in lines if line and line[0] in {*EXPERIMENTS, *EXERCISES}] == listed


def test_the_lists_are_json(capsys):
    assert run_command(["lab", "--json"]) == 0

    lists = json.loads(capsys.readouterr().out)
    assert lists == {
        "experiments": [{"name": name, "question": each.question} for name, each in EXPERIMENTS.items()],
        "exercises": [{"name": name, "summary": each.summary} for name, each in EXERCISES.items()],
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_module(name):
    assert find_spec(f"samestep_lab.experiments.{name.replace('-', '_')}")


def test_the_result_of_an_experiment_is_json(capsys):
    assert run_command(["lab", "who-sees-what", "-n", "3", "--json"]) == 0

    record = json.loads(capsys.readouterr().out)
    assert set(record) == {"experiment", "question", "workers", "measured", "values"}
    assert (record["experiment"], record["workers"]) == ("who-sees-what", 3)
    assert record["values"]["repeated"]["DistributedSampler"] == 1


def test_the_page_of_an_experiment_is_written(tmp_path, capsys):
    path = tmp_path / "page.html"

    assert run_command(["lab", "backends", "--page", str(path)]) == 0
    assert "samestep lab backends" in path.read_text()
    assert capsys.readouterr().out.startswith("backends: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--json", "ring"],
        ["ring", "-n", "1"],
        ["serial-first", "-n", "3"],
        ["backends", "-n", "0"],
        ["padding", "--data", "nonsense"],
        ["shuffling", "-n", "65"],
        ["backends", "--page", "/dev/null/page.html"],
    ],
)
def test_wrong_input_is_refused_in_one_line(arguments, capsys):
    assert run_command(["lab", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_data_set_that_is_read_from_files_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(training_runs, "load", lambda *_, **__: object())

    assert run_command(["lab", "padding", "--data", "folder@8"]) == 2
    assert "folder@8" in capsys.readouterr().err


def test_a_page_has_the_charts_and_tables_of_the_outcome():
    chart = BarChart(
        title="Sent", x="rank", y="tensors", kinds=[(color(0), "sent")], groups={"0": [Bar(parts={0: 1.0})]}
    )
    outcome = Outcome(
        tables=[Table(head=("a", "b"), rows=[("<x>", "1")])], measured="One.", values={}, charts=[chart]
    )

    page = text.outcome_page(EXPERIMENTS["ring"], outcome, workers=3)

    assert page.count("<figure>") == 1
    assert "&lt;x&gt;" in page


def test_the_interval_is_by_students_t():
    mean, half = mean_and_half([1.0, 2.0, 3.0])

    assert (mean, half) == (2.0, pytest.approx(4.303 / 3**0.5))
    assert mean_and_half([1.0])[0] == 1.0
    assert interval_text([0.5, 0.5], scale=100, unit=" %") == "50.00 +- 0.00 %"


def test_the_lab_is_a_verb_only_where_its_package_is_installed(monkeypatch, capsys):
    monkeypatch.setattr(main, "added_verbs", dict)

    assert run_command(["lab", "ring"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install samestep-lab" in line
    assert run_command(["--help"]) == 0
    assert " lab " not in capsys.readouterr().out


def test_help_lists_the_lab_without_importing_it(capsys):
    code = (
        "import sys\nfrom samestep.cli.main import run_command\nrun_command(['--help'])\n"
        "assert 'samestep_lab' not in sys.modules"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert " lab " in listed.stdout
