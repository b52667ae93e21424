"""Options after a script belong to the verb or to the script, by the same rule in each verb."""

from pathlib import Path

import pytest

from samestep.cli.main import run_command
from samestep.cli.options.script_words import flags_of

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


LITERAL = {
    "argparse": "import argparse\nargparse.ArgumentParser().add_argument('-s', '--seed', type=int)",
    "click": "import click\n@click.option('--seed')\ndef main(seed): pass\nmain()",
    "click, yes or no": "import click\n@click.option('--no-seed/--seed')\ndef main(seed): pass\nmain()",
    "by hand": "import sys\nfor word in sys.argv:\n    if word.startswith('--seed='): pass",
    "its module's": "from args import parse_args\nparse_args()",
    "another's": "import argparse\nfrom options import parser\nparser.parse_args()",
}
DERIVED = {
    "fire": "import fire\nfire.Fire(lambda seed: None)",
    "tyro": "from dataclasses import dataclass\nimport tyro\ntyro.cli(dataclass(type('A', (), {})))",
    "typer": "import typer\napp = typer.Typer()\n@app.command()\ndef main(seed: int): pass\napp()",
    "absl": "from absl import flags\nflags.DEFINE_integer('seed', 0, 'of all')",
    "transformers": "from transformers import HfArgumentParser as P\nP(A).parse_args_into_dataclasses()",
    "derived": "from tap import Tap\nclass Arguments(Tap):\n    seed: int\nArguments().parse_args()",
    "a package's": "from detectron2.engine import default_argument_parser as p\np().parse_args()",
    "docopt": "from docopt import docopt\ndocopt('Usage: train.py --seed=S')",
    "getopt": "import getopt, sys\ngetopt.getopt(sys.argv[1:], 's:', ['seed='])",
    "of a module": "import settings",
    "hydra": "import hydra\n@hydra.main(config_path='conf')\ndef main(cfg): pass\nmain()",
    "computed": "import argparse\nargparse.ArgumentParser().add_argument('--' + 'seed')",
    "formatted": "import argparse\np = argparse.ArgumentParser()\n[p.add_argument(f'--{n}') for n in 'ab']",
}
NONE = {
    "nothing": "print('hello')",
    "in a help text": '"""Run it: torchrun --seed 1 train.py -n 2"""\nprint("use --seed")',
    "another": "import argparse\nargparse.ArgumentParser().add_argument('--seeds')",
}


def flags_in(folder, text):
    """Return whether ``--seed`` is found in a program, and which call defines unknown flags."""
    (folder / "args.py").write_text(f"{LITERAL['argparse']}\ndef parse_args(): pass\n")
    (folder / "options.py").write_text(f"parser = None\n{LITERAL['argparse']}\n")
    (folder / "settings.py").write_text(f"{DERIVED['tyro']}\n")
    (folder / "train.py").write_text(text)
    found = flags_of(folder / "train.py", roots=[folder])
    return "--seed" in found.literal, found.parser


@pytest.mark.parametrize("name", LITERAL)
def test_literal_flags_are_found(tmp_path, name):
    assert flags_in(tmp_path, LITERAL[name]) == (True, None)


@pytest.mark.parametrize("name", DERIVED)
def test_calls_that_derive_flags_are_found(tmp_path, name):
    assert flags_in(tmp_path, DERIVED[name])[1] is not None


@pytest.mark.parametrize("name", NONE)
def test_other_strings_are_no_flags(tmp_path, name):
    assert flags_in(tmp_path, NONE[name]) == (False, None)


def test_the_file_of_a_flag_is_reported(tmp_path):
    flags_in(tmp_path, LITERAL["its module's"])

    assert flags_of(tmp_path / "train.py", roots=[tmp_path]).literal["-s"] == tmp_path / "args.py"
