"""The flags of a program are found in its source."""

import pytest

from samestep.launch.source.flags import flags_of

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
