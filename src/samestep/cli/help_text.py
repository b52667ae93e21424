"""Prepares the texts of ``--help``: lines that flow, and the options that most users need first."""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from shutil import get_terminal_size
from textwrap import dedent
from typing import Any

import typer

_NARROW = 80
"""Columns of a terminal in which a table of options needs no shortened name."""

COMMON = {
    "run": (
        *("workers", "nproc_per_node", "module", "explain", "sanitize", "count"),
        *("max_restarts", "log_dir", "config", "quiet", "dry_run"),
    ),
    "verify": ("workers", "steps", "against", "module", "as_json", "quiet"),
    "scale": (
        *("workers", "scaling", "compare", "module", "steps", "repeats", "submit"),
        *("worth", "out", "figures", "as_json", "quiet", "dry_run"),
    ),
    "train": (
        *("workers", "fast", "epochs", "batch_size", "lr", "seed", "exact", "precision"),
        *("data", "data_dir", "resume", "config", "out", "as_json", "quiet"),
    ),
    "report": ("scaling", "worth", "page", "figures", "pdf", "as_json", "quiet"),
    "bench": ("workers", "sizes", "sync", "seconds", "as_json", "quiet"),
    "submit": ("nodes", "workers", "job_name", "output", "detach", "as_json", "quiet", "dry_run"),
    "data": ("data_dir", "as_json"),
    "doctor": ("workers", "run_folder", "devices", "wait", "as_json"),
}
"""The parameters of the options that come first, by verb; the others keep the headings of their topics.

For a verb of several commands they are those of all its commands.
"""


def common_first(commands: Mapping[str, Any]) -> None:
    """Put the common options of each command first, in one panel without a topic.

    Args:
        commands: the commands of the application by name; those that are not loaded have no options.
    """
    for verb, names in COMMON.items():
        if verb in commands:
            for command in (commands[verb], *getattr(commands[verb], "commands", {}).values()):
                _put_first(command, names)


def _put_first(command: Any, names: Sequence[str]) -> None:
    options = {parameter.name: parameter for parameter in command.params}
    common = [options.pop(name) for name in names if name in options]
    for parameter in common:
        parameter.rich_help_panel = None
    arguments = [parameter for parameter in options.values() if parameter.param_type_name == "argument"]
    rest = [parameter for parameter in options.values() if parameter.param_type_name != "argument"]
    command.params = [*arguments, *common, *rest]


def without_needless_types(command: Any, settings: Mapping[str, Any]) -> None:
    """Show the parameters of a command, and of the commands below it, without types that explain nothing.

    A switch takes no value (``<bool>``), and the name of an argument that takes several values is enough
    (``<list[str]>``).

    Args:
        command: the command.
        settings: settings of its context; they have the names of its help option.
    """
    for parameter in (*command.params, command.get_help_option(typer.Context(command, **settings))):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if parameter.param_type_name == "argument" and parameter.nargs != 1:
            parameter.display_type_rich = lambda ctx: ""  # noqa: ARG005 - typer calls it by this name
    for below in getattr(command, "commands", {}).values():
        without_needless_types(below, settings)


def plain_if_narrow(command: Any) -> None:
    """Show the help of a command, and of those below it, without a table on a terminal that is too narrow.

    A table of options would shorten their names there.
    """
    if (columns := get_terminal_size().columns) < _NARROW:
        command.rich_markup_mode = None
        command.context_settings = {**command.context_settings, "terminal_width": columns}
        for below in getattr(command, "commands", {}).values():
            plain_if_narrow(below)


def help_of(function: Callable[..., Any]) -> str:
    r"""Return the docstring of a command in lines that a terminal of any width breaks itself.

    Python with ``-OO`` removes docstrings; they are read from the source then.

    >>> def command():
    ...     "A sentence.\n\n    Two\n    lines."
    >>> help_of(command)
    'A sentence.\n\nTwo lines.'
    """
    text = function.__doc__ or _docstring_in_source(function)
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _docstring_in_source(function: Callable[..., Any]) -> str:
    with suppress(OSError, SyntaxError):  # there is no source, as in a frozen application
        source = dedent(inspect.getsource(function))
        # `ast.parse` removes docstrings, too, in newer versions of Python.
        tree: Any = compile(source, "<help>", "exec", flags=ast.PyCF_ONLY_AST, optimize=0)
        parsed = tree.body[0]
        if isinstance(parsed, ast.FunctionDef):
            return ast.get_docstring(parsed) or ""
    return ""
