"""Refuses empty paths and names: an empty variable of a shell would be the current folder."""

from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError

_NAMES = ("target", "recipe", "model", "data")
"""Parameters that are a script, a module or a name."""


def refuse_empty_values(command: Any) -> None:
    """Let a command, and those below it, refuse an empty text for a path, a script or another name."""
    for parameter in command.params:
        parameter.process_value = _refusing(parameter, parameter.process_value)
    for below in getattr(command, "commands", {}).values():
        refuse_empty_values(below)


def _refusing(parameter: Any, process: Any) -> Any:
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar

    def checked(context: Any, value: Any) -> Any:
        result = process(context, value)
        items = value if isinstance(value, (list, tuple)) else [value]
        results = result if isinstance(result, (list, tuple)) else [result]
        is_file = parameter.name in _NAMES or any(isinstance(item, Path) for item in results)
        if is_file and "" in items:
            raise UsageError(f"{name} is empty; give a name, or leave it out.")
        return result

    return checked
