"""Options after a script belong to the verb or to the script, by the same rule in each verb."""

from pathlib import Path

import pytest

from samestep.cli.main import run_command

SILENT = "print('no options')\n"
PARSER = "import argparse\nargparse.ArgumentParser().add_argument('--threads')\n"
COMPUTED = "import argparse\n[argparse.ArgumentParser().add_argument('--' + name) for name in ('steps',)]\n"


@pytest.fixture(autouse=True)
def _scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"silent": SILENT, "parser": PARSER, "computed": COMPUTED}.items():
        Path(f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["silent.py", "--threads", "2", "x"], "samestep run --threads 2 silent.py x"),
        (["silent.py", "x", "--threads=2"], "samestep run --threads=2 silent.py x"),
        (["-n", "2", "-m", "silent", "--no-python"], "samestep run --no-python -n 2 -m silent"),
        (["silent.py", "--num_processes", "2"], "samestep run --num_processes 2 silent.py"),
        (["parser.py", "--hang-timeout", "2"], "samestep run --hang-timeout 2 parser.py"),
    ],
)
def test_an_option_of_run_that_the_program_does_not_have_is_refused_after_it(capsys, words, meant):
    assert run_command(["run", *words]) == 2
    assert capsys.readouterr().err.endswith(f"{meant}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["parser.py", "--threads", "2"],
        ["parser.py", "--thr", "2"],
        ["computed.py", "--steps", "2"],
        ["-n", "1", "silent.py", "-n", "2"],
        ["silent.py", "--lr", "2"],
        ["silent.py", "--help"],
        ["--", "silent.py", "--threads", "2"],
        ["silent.py", "--", "--threads", "2"],
    ],
)
def test_other_words_after_the_program_of_run_are_its_arguments(capsys, words):
    assert run_command(["run", "--dry-run", *words]) == 0


@pytest.mark.parametrize("verb", ["verify", "scale"])
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["computed.py", "--steps", "2"], "computed.py:2"),
        (["silent.py", "--stepz", "2"], "--steps"),
        (["--stepz", "2", "silent.py"], "--steps"),
        (["--learning_rate=2", "silent.py"], "--lr"),
    ],
)
def test_an_option_that_is_unclear_is_refused(capsys, verb, words, named):
    assert run_command([verb, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
