"""``samestep bench`` refuses wrong input before anything starts, and prints its measurements."""

import json
import subprocess
import sys

import pytest
import torch
import typer

from samestep.base import env
from samestep.cli import bench
from samestep.cli.main import run_command
from samestep.ranks.collectives.algorithm_choice import Measured
from samestep.studies.bench import measurement
from samestep.studies.bench.figures import Wrong, figures
from samestep.studies.bench.measurement import Report
from samestep.studies.bench.request import COLLECTIVES, Request


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["all-reduce"], ["-n 2"]),
        (["all-reduce", "-n", "2", "--sizes", "x"], ["--sizes 'x'"]),
        (["all-reduce", "-n", "2", "--plot", "x.png"], ["--plot x.png", ".svg"]),
        (["all-reduce", "-n", "2", "--plot", "/nowhere/x.svg"], ["--plot /nowhere/x.svg"]),
        (
            ["all-reduce", "-n", "2", "--algorithm", "tre"],
            ["--algorithm tre", "all_reduce", "ring"],
        ),
        (
            ["all-reduce", "-n", "2", "--figures", "/dev/null/x"],
            ["--figures /dev/null/x", "/dev/null is a file"],
        ),
        (["broadcast", "-n", "2", "--save"], ["--save", "all-reduce"]),
        (["all-reduce", "-n", "2", "--save", "--dtype", "int64"], ["--save", "float32", "int64"]),
        (["all-reduce", "-n", "2", "--hang-timeout", "-1"], ["--hang-timeout", "-1"]),
        (["step"], ["-n 2"]),
        (["step", "-n", "2", "--sync", "telepathy"], ["--sync 'telepathy'", "naive, ring"]),
        (["step", "-n", "2", "--model", "vgg"], ["vgg"]),
        (["step", "-n", "2", "--batch-per-worker", "1"], ["batch norm"]),
        (["step", "-n", "2", "--seconds", "0"], ["--seconds", "0"]),
        (["step", "-n", "2", "--hang-timeout", "inf"], ["--hang-timeout", "inf"]),
        (["all-to-all", "-n", "2"], ["'all-to-all'"]),
    ],
)
def test_wrong_input_is_refused_in_one_line_with_its_value(arguments, named, capsys, monkeypatch):
    monkeypatch.setattr(env, "snapshot", dict)

    assert run_command(["bench", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(text in line for text in named)


def test_missing_gpus_are_reported_before_a_worker_starts(capsys, monkeypatch):
    monkeypatch.setattr(env, "snapshot", dict)
    monkeypatch.setattr(bench, "accelerator_count", lambda: 1)

    assert run_command(["bench", "step", "-n", "2", "--sync", "ring,data_parallel"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--sync data_parallel" in line
    assert "has 1 for 2 workers" in line


def test_the_help_lists_the_collectives_and_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from samestep.cli.main import run_command\n"
        "run_command(['bench', '--help']); run_command(['bench', 'all-reduce', '--help']); "
        "run_command(['bench', 'step', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert all(f" {name.replace('_', '-')} " in done.stdout for name in COLLECTIVES)
    assert "--algorithm" in done.stdout


@pytest.fixture
def work(monkeypatch):
    """Return a function that prints a given report, as the only worker."""

    def work(report, **how):
        request = Request(collective="broadcast", sizes=(4,))
        output = bench.Output(**{"plot": None, "figures": None, "as_json": False, "save": False} | how)
        monkeypatch.setattr(env, "snapshot", dict)
        monkeypatch.setattr(measurement, "perform", lambda world, request, *, done, give_up: report)
        bench._work(request, output, threads=torch.get_num_threads())

    return work


def report_of(*wrong):
    row = figures("broadcast", "ring", nbytes=65536, ranks=2, times=[1e-4] * 3, copying=[1e-5])
    return Report(rows=[row], wrong=list(wrong), copying={65536: 6.5e9}, rounds={65536: 3})


def test_an_algorithm_that_is_wrong_is_named_and_the_command_fails(work, capsys):
    with pytest.raises(typer.Exit) as ended:
        work(
            report_of(Wrong(algorithm="tree", bytes=64, problem="on rank 1, element 3 is 2, not 1")),
            as_json=True,
        )

    printed = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "tree" in printed.err
    assert "64 B" in printed.err
    assert "on rank 1, element 3 is 2, not 1" in printed.err
    assert json.loads(printed.out)["algorithm"] == "ring"


def test_a_table_ends_with_the_fastest_algorithm_and_a_plot_is_written(work, capsys, tmp_path):
    work(report_of(), plot=tmp_path / "x.svg", figures=tmp_path / "figures")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("broadcast of float32 among 1 ranks, 3 rounds")
    assert "6.5 GB/s" in lines[0]
    assert "ring from 64 KiB" in lines[-2]
    assert "100 us at 64 KiB" in lines[-1]
    assert (tmp_path / "x.svg").read_text().startswith("<svg ")
    assert (tmp_path / "figures" / "broadcast.svg").read_text() == (tmp_path / "x.svg").read_text()


def test_measurements_are_stored_for_algorithm_auto(work, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    work(report_of(), save=True)

    stored = Measured(ranks=1, hosts=1, device="cpu")
    assert str(stored.path()) in capsys.readouterr().err
    assert stored.load().text == "ring"
