"""Finds the command-line flags of a program in its source.

Most programs contain each flag as a string, for argparse or click. Other flags do not appear in the source:
they are derived from the names of fields and parameters, or defined by an installed package.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.launch.source.classify import Evidence, user_modules
from samestep.launch.source.names import Names, is_one_of, reached_nodes, used_names

_FLAGS = re.compile(r"--?[A-Za-z][\w-]*(/--?[A-Za-z][\w-]*)*=?")
"""A string that is a flag, or two flags as in click's ``--yes/--no``."""
_PARSED = re.compile(r"\.parse_(known_)?args\w*$")
_EXPLICIT = ("argparse", "optparse", "configargparse")  # packages whose parsers take each flag as a string

_DERIVING = (
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
    "hydra.main",
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
"""Calls that derive flags from names, or read them from a usage text."""

_ADDING = ("add_argument", "add_option")
"""Methods that define a flag; its name can be computed."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a program."""

    literal: Mapping[str, Path]  # flags in the source, each with its file
    parser: Evidence | None  # first call that defines further, unknown flags; None if there is none
    reads_argv: bool = False  # whether it reads ``sys.argv`` itself


def flags_of(script: Path, *, roots: Sequence[Path]) -> Flags:
    """Return the flags in the source of `script` and of the user's modules that it imports.

    Imports are searched in `roots`, folders of the user's code.

    Raises:
        UsageError: the script is not valid Python.
    """
    literal: dict[str, Path] = {}
    uses: list[Evidence] = []
    computed: list[Evidence] = []
    reads_argv = False
    packages = {script.parent.name}
    modules = list(user_modules(script, roots))
    reached = reached_nodes(modules, main=script)
    for file, tree in modules:
        packages |= {file.stem, file.parent.name}
        nodes = reached[file]
        for node in nodes:
            reads_argv |= isinstance(node, ast.Attribute) and node.attr == "argv"
            reads_argv |= isinstance(node, ast.alias) and node.name == "argv"
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _FLAGS.fullmatch(text):
                literal |= dict.fromkeys(text.removesuffix("=").split("/"), file)
            if isinstance(node, ast.Call) and _computes_flag(node):
                computed.append(Evidence(file, node.lineno, ast.unparse(node.func)))
        uses += [Evidence(file, line, name) for name, line in used_names(nodes, Names(tree))]
    parser = next((use for use in uses if _defines_flags(use.name, packages)), next(iter(computed), None))
    return Flags(literal, parser, reads_argv=reads_argv)


def _computes_flag(call: ast.Call) -> bool:
    """Return whether a call defines a flag whose name is not in the source."""
    is_adding = isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING
    return is_adding and any(not isinstance(name, ast.Constant) for name in call.args)


def _defines_flags(name: str, packages: set[str]) -> bool:
    top = name.partition(".")[0]
    elsewhere = _PARSED.search(name) is not None and top not in packages and top not in _EXPLICIT
    return elsewhere or is_one_of(name, _DERIVING)
