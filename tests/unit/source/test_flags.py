"""Which flags a program has, as far as its text tells."""

import pytest

from samestep.source.flags import flags_of

WRITTEN = {
    "argparse": "import argparse\nargparse.ArgumentParser().add_argument('-s', '--seed', type=int)",
    "click": "import click\n@click.option('--seed')\ndef main(seed): pass\nmain()",
    "click, yes or no": "import click\n@click.option('--no-seed/--seed')\ndef main(seed): pass\nmain()",
    "by hand": "import sys\nfor word in sys.argv:\n    if word.startswith('--seed='): pass",
    "its module's": "from args import parse_args\nparse_args()",
    "another's": "import argparse\nfrom options import parser\nparser.parse_args()",
}
MADE = {
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
}
NONE = {
    "nothing": "print('hello')",
    "said to people": '"""Run it: torchrun --seed 1 train.py -n 2"""\nprint("use --seed")',
    "another": "import argparse\nargparse.ArgumentParser().add_argument('--seeds')",
}


def seen(folder, text):
    """Return whether ``--seed`` is seen in a program, and what else makes flags."""
    (folder / "args.py").write_text(f"{WRITTEN['argparse']}\ndef parse_args(): pass\n")
    (folder / "options.py").write_text(f"parser = None\n{WRITTEN['argparse']}\n")
    (folder / "settings.py").write_text(f"{MADE['tyro']}\n")
    (folder / "train.py").write_text(text)
    found = flags_of(folder / "train.py", roots=[folder])
    return "--seed" in found.written, found.maker


@pytest.mark.parametrize("name", WRITTEN)
def test_flags_that_are_written_down_are_seen(tmp_path, name):
    assert seen(tmp_path, WRITTEN[name]) == (True, None)


@pytest.mark.parametrize("name", MADE)
def test_who_makes_flags_of_names_is_seen(tmp_path, name):
    assert seen(tmp_path, MADE[name])[1] is not None


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_flag_is_not_taken_for_one(tmp_path, name):
    assert seen(tmp_path, NONE[name]) == (False, None)


def test_where_a_flag_is_from_is_told(tmp_path):
    seen(tmp_path, WRITTEN["its module's"])

    assert flags_of(tmp_path / "train.py", roots=[tmp_path]).written["-s"] == tmp_path / "args.py"
