"""Reads a project's own defaults of options: from ``--config FILE``, or from its ``pyproject.toml``."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from samestep.base.config import read_toml, suggestion
from samestep.base.errors import UsageError
from samestep.cli.options.declare import option
from samestep.cli.other_names import own_name

PROJECT = "pyproject.toml"
_TABLE = "tool.samestep"


def defaults_in(path: Path, table: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """Return the values of `table` by the parameters of the context's command.

    Raises:
        UsageError: a key is not an option, or the option does not take its value.
    """
    options = {
        name.lstrip("-"): one
        for one in context.command.params
        if one.param_type_name == "option" and not getattr(one, "hidden", False)
        for name in one.opts
    }
    found = {}
    for key, value in table.items():
        one: Any = options.get(own_name(key))
        if one is None:
            names = [name for name in options if len(name) > 1]
            raise UsageError(f"{path}: there is no option {key!r}. {suggestion(own_name(key), names)}")
        found[one.name] = _as_typed(value) if one.is_flag is isinstance(value, bool) else None
        try:
            if found[one.name] is None:
                raise typer.BadParameter("give true or false" if one.is_flag else "give a value")
            one.process_value(context, found[one.name])
        except typer.TyperException as error:
            text = str(getattr(error, "message", error)).rstrip(".")
            raise UsageError(
                f"{path}: {key} = {value!r} is not a value of --{own_name(key)}: {text}."
            ) from None
    return found


def _as_typed(value: Any) -> Any:
    """Return a value of the file as it is typed after a flag; None if it cannot be typed."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [str(item) for item in value]
    return None if isinstance(value, Mapping) else str(value)


def _set_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Give the options of a command the defaults of the project; return the file that they are in."""
    if context.resilient_parsing:  # words are completed
        return file
    path = file or _project()
    if path is None:
        return None
    table = read_toml(path)
    if path.name == PROJECT:
        table = table.get("tool", {}).get("samestep", {})
        if not isinstance(table, Mapping):
            raise UsageError(f"{path}: samestep is a table: write [{_TABLE}] on a line of its own.")
    context.default_map = defaults_in(path, table, context)
    return path if table else None


def _project() -> Path | None:
    """Return the nearest ``pyproject.toml`` of the working folder, if it has a table for samestep."""
    here = Path.cwd()
    path = next((one / PROJECT for one in (here, *here.parents) if (one / PROJECT).is_file()), None)
    with suppress(OSError, ValueError):
        if path is not None and f"[{_TABLE}]" in path.read_text(encoding="utf-8"):
            return path
    return None


Config = Annotated[
    Path | None,
    option(
        "FILE",
        "Defaults of these options, a TOML file. Without it: the table tool.samestep of pyproject.toml.",
        "",
        is_eager=True,
        callback=_set_defaults,
    ),
]
"""The option of a file with defaults; its value is the file that has given some."""
