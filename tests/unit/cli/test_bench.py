"""``samestep bench``: what is refused before anything starts, and what is told."""

import json
import subprocess
import sys

import pytest
import torch
import typer

from samestep.base import env
from samestep.bench import perform
from samestep.bench.figures import Wrong, figures
from samestep.bench.perform import Report
from samestep.bench.request import COLLECTIVES, Request
from samestep.cli import bench, bench_step
from samestep.cli.main import run_command
from samestep.collectives.crossovers import Measured


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all-reduce"], "one worker exchanges nothing: give -n 2 or more"),
        (["all-reduce", "-n", "2", "--sizes", "x"], "--sizes 'x'"),
        (["all-reduce", "-n", "2", "--plot", "x.png"], "--plot x.png: give a name that ends in .svg"),
        (["all-reduce", "-n", "2", "--plot", "/nowhere/x.svg"], "in a folder that there is"),
        (
            ["all-reduce", "-n", "2", "--algorithm", "tre"],
            "--algorithm tre: all_reduce has, among these ranks",
        ),
        (["broadcast", "-n", "2", "--save"], "--save keeps which all-reduce wins where"),
        (["all-reduce", "-n", "2", "--save", "--dtype", "int64"], "leave --dtype int64 or --save out"),
        (["all-reduce", "-n", "2", "--timeout", "-1"], "--timeout -1 is no time to wait"),
        (["step"], "one worker exchanges nothing: give -n 2 or more"),
        (["step", "-n", "2", "--sync", "telepathy"], "--sync 'telepathy' is none of naive, ring"),
        (["step", "-n", "2", "--model", "vgg"], "vgg"),
        (["step", "-n", "2", "--batch-per-worker", "1"], "batch norm needs 2 or more"),
        (["step", "-n", "2", "--seconds", "0"], "--seconds 0 is no time to measure for"),
        (["step", "-n", "2", "--timeout", "inf"], "--timeout inf is no time to wait"),
        (["all-to-all", "-n", "2"], "No such command 'all-to-all'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(env, "snapshot", dict)

    assert run_command(["bench", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_gpus_that_there_are_not_are_missed_before_a_worker_starts(capsys, monkeypatch):
    monkeypatch.setattr(env, "snapshot", dict)
    monkeypatch.setattr(bench_step, "accelerator_count", lambda: 1)

    assert run_command(["bench", "step", "-n", "2", "--sync", "ring,data_parallel"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "samestep: error: --sync data_parallel needs two GPUs or more, one for each worker"
    )
    assert "This node has 1 for 2 workers" in line


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
    """Be the only worker, with a report that somebody else has made."""

    def work(report, **how):
        request = Request(collective="broadcast", sizes=(4,))
        telling = bench.Telling(**{"plot": None, "as_json": False, "save": False} | how)
        monkeypatch.setattr(env, "snapshot", dict)
        monkeypatch.setattr(perform, "perform", lambda world, request, *, done, give_up: report)
        bench._work(request, telling, threads=torch.get_num_threads())

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

    said = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "tree is wrong at 64 B, and was not timed: on rank 1, element 3 is 2, not 1" in said.err
    assert json.loads(said.out)["algorithm"] == "ring"


def test_a_table_ends_with_an_answer_and_a_picture_is_drawn(work, capsys, tmp_path):
    work(report_of(), plot=tmp_path / "x.svg")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("broadcast of float32 among 1 ranks, 3 rounds of each size; each rank copies")
    assert lines[-2:] == ["fastest: ring from 64 KiB", "ring takes 100 us at 64 KiB"]
    assert (tmp_path / "x.svg").read_text().startswith("<svg ")


def test_what_was_measured_is_kept_for_those_who_choose_by_it(work, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    work(report_of(), save=True)

    kept = Measured(ranks=1, hosts=1, device="cpu")
    assert f"kept for --algorithm auto: {kept.path()}" in capsys.readouterr().err
    assert kept.load().text == "ring"
