"""Declares options and groups of options; a group is a dataclass whose fields are options."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer

WORKERS_PANEL, CLOCK_PANEL = "Workers", "Step clock"
TRAINING_PANEL, DATA_PANEL, RESULTS_PANEL = "Training", "Data", "Results"
JOBS_PANEL = "Slurm jobs"

Result = TypeVar("Result")


def option(metavar: str, about: str, panel: str = "", *names: str, **more: Any) -> Any:
    """Return the declaration of an option.

    Args:
        metavar: the value in ``--help``; empty for the name of the type.
        about: the text in ``--help``.
        panel: the heading in ``--help``; empty for that of all options.
        names: the spellings; by default that of the parameter.
        more: further arguments of `typer.Option`.
    """
    return typer.Option(*names, help=about, metavar=metavar or None, rich_help_panel=panel or None, **more)


def switch(about: str, panel: str, *names: str) -> Any:
    """Return the declaration of an option without a value; see `option`."""
    return option("", about, panel, *names)


def grouped(verb: Callable[..., Result]) -> Callable[..., Result]:
    """Give a verb the options of each parameter that is a group, in its place.

    A group is a dataclass with an `option` as the annotation of each field. The defaults of the options are
    those of the group, or those of the instance that is the parameter's default.
    """
    own = inspect.signature(verb, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for one in own.parameters.values():
        if is_dataclass(one.annotation):
            groups[one.name] = one.annotation
            parameters += _options_of(one)
        elif one.kind is not one.VAR_KEYWORD:
            parameters.append(one)

    signature = own.replace(parameters=parameters)

    @wraps(verb)
    def command(*arguments: Any, **flags: Any) -> Result:
        bound = signature.bind(*arguments, **flags)
        bound.apply_defaults()
        values = bound.arguments
        made = {
            name: kind(**{option.name: values.pop(option.name) for option in fields(kind)})
            for name, kind in groups.items()
        }
        return verb(**values, **made)

    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def _options_of(group: inspect.Parameter) -> list[inspect.Parameter]:
    kind: Any = group.annotation
    defaults = kind() if group.default is group.empty else group.default
    hints = get_type_hints(kind, include_extras=True)
    return [
        group.replace(name=one.name, default=getattr(defaults, one.name), annotation=hints[one.name])
        for one in fields(kind)
    ]
