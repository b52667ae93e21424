"""Which flags a program takes, as far as its text tells; nothing is run.

Most programs write their flags down, each as a string, as argparse and click read them. Others have them made
of the names of fields and parameters, or by a package: those stand nowhere as flags.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.source.names import Names, running, used_names
from samestep.source.recognise import Evidence, is_one_of, own_modules

_FLAGS = re.compile(r"--?[A-Za-z][\w-]*(/--?[A-Za-z][\w-]*)*=?")
"""A string that is a flag; click has some that are two, for yes and for no."""

_PARSED = re.compile(r"\.parse_(known_)?args\w*$")
_WRITTEN = ("argparse", "optparse", "configargparse")
"""Packages whose parsers are told each flag."""

MADE = (
    "absl.flags",
    "argh",
    "chz.entrypoint",
    "clize.run",
    "cyclopts",
    "datargs",
    "defopt.run",
    "docopt.docopt",
    "draccus",
    "fire.Fire",
    "getopt",
    "jsonargparse",
    "lightning.pytorch.cli.LightningCLI",
    "plac.call",
    "pydantic_settings.BaseSettings",
    "pyrallis",
    "pytorch_lightning.cli.LightningCLI",
    "simple_parsing",
    "tap.Tap",
    "transformers.HfArgumentParser",
    "trl.TrlParser",
    "typer",
    "tyro",
)
"""What makes flags of names, or reads them from a text that is written for people."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that a program has.

    Args:
        written: those in its text, each with the file.
        maker: what reads others, of which nothing can be seen; None for nothing.
    """

    written: Mapping[str, Path]
    maker: Evidence | None


def flags_of(script: Path, *, roots: Sequence[Path]) -> Flags:
    """Return the flags of `script`, from its text and that of the modules it imports.

    Args:
        script: the file that runs as ``__main__``.
        roots: folders of the user's own code where its imports are looked for.

    Raises:
        UsageError: the script is not text that Python can read.
    """
    written: dict[str, Path] = {}
    makers: list[Evidence] = []
    own = {script.parent.name}
    for file, tree in own_modules(script, roots):
        own |= {file.stem, file.parent.name}
        nodes = running(tree, is_main=file is script)
        for node in nodes:
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _FLAGS.fullmatch(text):
                written |= dict.fromkeys(text.removesuffix("=").split("/"), file)
        makers += [Evidence(file, line, name) for name, line in used_names(nodes, Names(tree))]
    return Flags(written, next((use for use in makers if _makes_flags(use.name, own)), None))


def _makes_flags(name: str, own: set[str]) -> bool:
    top = name.partition(".")[0]
    elsewhere = _PARSED.search(name) is not None and top not in own and top not in _WRITTEN
    return elsewhere or is_one_of(name, MADE)
