"""``samestep bench`` refuses wrong input before anything starts, and prints its measurements."""

import json
import subprocess
import sys

import pytest
import torch

from samestep.base import env
from samestep.bench import measurement
from samestep.bench.figures import COLLECTIVES, Request, figures
from samestep.cli import bench
from samestep.cli.main import run_command


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["all-reduce"], ["-n 2"]),
        (["all-reduce", "-n", "2", "--sizes", "x"], ["--sizes 'x'"]),
        (["all-reduce", "-n", "2", "--min", "4K"], ["--min", "--sizes"]),
        (["all-reduce", "-n", "2", "--algorithm", "tree"], ["--algorithm", "leave it out"]),
        (["all-reduce", "-n", "2", "--save"], ["--save", "leave it out"]),
        (["scatter", "-n", "2"], ["'scatter'", "all-reduce, broadcast, all-gather"]),
        (["all-reduce", "-n", "2", "--hang-timeout", "-1"], ["--hang-timeout", "-1"]),
        (["step"], ["-n 2"]),
        (["step", "-n", "2", "--sync", "telepathy"], ["--sync 'telepathy'", "reference, bucketed"]),
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


def test_the_help_lists_the_collectives_and_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from samestep.cli.main import run_command\n"
        "run_command(['bench', '--help']); run_command(['bench', 'all-reduce', '--help']); "
        "run_command(['bench', 'step', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert all(f" {name.replace('_', '-')} " in done.stdout for name in COLLECTIVES)
    assert "--sizes" in done.stdout


@pytest.fixture
def measured(monkeypatch):
    """Return a function that prints one measured row, as the only worker."""

    def measured(**how):
        row = figures("broadcast", "ring", nbytes=65536, ranks=2, times=[1e-4] * 3)
        monkeypatch.setattr(env, "snapshot", dict)
        monkeypatch.setattr(measurement, "perform", lambda world, request, *, done: [row])
        request = Request(collective="broadcast", sizes=(4,))
        bench._measure_collective(request, threads=torch.get_num_threads(), **{"as_json": False} | how)

    return measured


def test_a_table_ends_with_the_fastest_algorithm(measured, capsys):
    measured()

    assert capsys.readouterr().out.splitlines()[-1].endswith("ring from 64 KiB")


def test_rows_are_printed_as_json(measured, capsys):
    measured(as_json=True)

    assert [row["algorithm"] for row in json.loads(capsys.readouterr().out)] == ["ring"]
