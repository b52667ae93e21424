"""Decides whether options that are typed after a script are those of the verb or those of the script.

An option that the verb does not have is the script's, and after ``--`` all are. An option of the verb is
refused if the script possibly has it too. With ``run`` it is the script's, as with torchrun, and refused if
the script does not have it.

The options of a script are found in its source. Most programs contain each flag as a string, for argparse or
click. Other flags do not appear in the source: they are derived from the names of fields and parameters, or
defined by an installed package.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.cli.other_names import answer_to, dashed, own_name
from samestep.launch.job import Program
from samestep.launch.source.classify import Evidence, user_modules
from samestep.launch.source.names import Names, is_one_of, reached_nodes, used_names
from samestep.run.decision import source_file

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


SETTINGS: Mapping[str, Any] = {
    "allow_interspersed_args": True,
    # Options that the verb does not have belong to the script.
    "ignore_unknown_options": True,
    # Other names of options belong to it as well.
    "token_normalize_func": dashed,
}
"""The settings of the context of a verb that takes options before and after a script."""

_LIKE = 0.8
"""Likeness from which an option is a misspelled one: ``--stepz`` is ``--steps``, ``--b`` not ``--bind``."""


def is_typed(name: str, context: Any) -> bool:
    """Return whether a parameter of a command was given in its words, and not by a file or a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def names_after(target: str, words: Sequence[str]) -> list[str]:
    """Return the options between a target and ``--`` in a command; none if ``--`` is before the target.

    >>> names_after("a.py", ["verify", "a.py", "--lr=1", "3", "--", "--steps"])
    ['--lr']
    """
    at = words.index(target) if target in words else len(words)
    if "--" in words[:at]:
        return []
    after = takewhile(lambda word: word != "--", words[at + 1 :])
    return [word.partition("=")[0] for word in after if word.startswith("-")]


def program_flags(program: Program) -> Flags | None:
    """Return the options in the source of a script or module; None if there is no source."""
    file, roots = source_file(program)
    return None if file is None else flags_of(file, roots=roots)


def can_have(known: Flags, name: str) -> bool:
    """Return whether a script possibly has an option; argparse also takes names that are cut short."""
    if known.parser is not None or known.reads_argv or name in known.literal:
        return True
    names = (name, name.replace("_", "-"))
    return name.startswith("--") and any(literal.startswith(names) for literal in known.literal)


def refuse_target(target: str, flags: Collection[str], *, verb: str) -> None:
    """Refuse an option that the verb does not have in the place of the script.

    Raises:
        UsageError: it is one.
    """
    if target.startswith("-"):
        name = target.partition("=")[0]
        answer = answer_to(f"--{own_name(name.strip('-'))}", [name])
        advice = next(
            (f"Did you mean {near}?" for near in _like(name, flags)), f"See: samestep {verb} --help"
        )
        raise UsageError(answer or f"samestep {verb} has no option {name}. {advice}")


def _like(name: str, flags: Collection[str]) -> list[str]:
    return get_close_matches(name, flags, n=1, cutoff=_LIKE) if name.startswith("--") else []


def refuse_unclear(program: Program, names: Sequence[str], flags: Collection[str], *, verb: str) -> None:
    """Refuse options after a script that possibly the verb and the script have, or misspelled ones.

    Args:
        program: the script or module.
        names: the options after it.
        flags: the options of the verb.
        verb: the verb.

    Raises:
        UsageError: there is one; the message names what to give instead.
    """
    known = program_flags(program) if names else None
    if known is None:
        return
    own_names = [name for name in names if dashed(name) in flags]
    claims, module = _claimed(known, own_names, program, verb), "-m " if program.kind == "module" else ""
    refuse_ambiguous(claims, program.target, of="the script", verb=verb, module=module)
    if program.kind == "module":  # an installed package can read options in files that are not searched
        return
    for name in names:
        near = [] if name in own_names or known.literal or can_have(known, name) else _like(name, flags)
        if near:
            raise UsageError(
                f"{program.target} reads no options, and samestep {verb} has no {name}. "
                f"Did you mean {near[0]}? All words after -- are the script's."
            )


def refuse_ambiguous(
    claims: Iterable[tuple[str, str]], target: str, *, of: str, verb: str, module: str = ""
) -> None:
    """Refuse the first of the options that the verb and its target have, each with the reason.

    `module` is ``-m `` if the target is a module.

    Raises:
        UsageError: there is one; the message shows how to make the command unambiguous.
    """
    for name, why in claims:
        raise UsageError(
            f"{name} is ambiguous: {why}. Put it before {target} for {verb}, or after -- for {of}: "
            f"samestep {verb} -n 1,2 {module}-- {target} {name} ..."
        )


def _claimed(known: Flags, names: Sequence[str], program: Program, verb: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a verb that a script has or possibly has, each with the reason."""
    for name in names:
        if name in known.literal:
            yield name, f"{known.literal[name]} and samestep {verb} have it"
        elif (parser := known.parser) is not None:
            made = f"{parser.name} in {Path(parser.file)}:{parser.line} creates options at run time"
            yield name, f"samestep {verb} has it, and {program.target} possibly too ({made})"
