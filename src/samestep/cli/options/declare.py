"""Declares options, and groups of options: dataclasses whose fields, or whose metadata, are options."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from samestep.base.errors import UsageError
from samestep.base.options import OF_COMMANDS, check_options, flag

WORKERS_PANEL, CLOCK_PANEL = "Workers", "Step clock"
TRAINING_PANEL, DATA_PANEL, RESULTS_PANEL = "Training", "Data", "Results"
JOBS_PANEL = "Slurm jobs"
_LONGEST_LIST = 24
"""Characters of the longest list of choices that help shows in the place of a value, in one line."""
_SHORT = ("-n", "-m")
"""Short names of options that are better known than the long ones."""

Result = TypeVar("Result")
Verb = TypeVar("Verb", bound=Callable[..., Any])


def option(
    metavar: str, about: str, panel: str = "", *names: str, choices: Sequence[str] = (), **more: Any
) -> Any:
    """Return the declaration of an option.

    Args:
        metavar: the value in ``--help``; empty for the choices if they are few, or the name of the type.
        about: the text in ``--help``.
        panel: the heading in ``--help``; empty for that of all options.
        names: the spellings; by default that of the parameter.
        choices: the values that a shell completes, or a list of them with commas; the verb checks its value.
        more: further arguments of `typer.Option`.
    """
    if choices:
        listed = f"[{'|'.join(choices)}]"
        metavar = metavar or (listed if len(listed) <= _LONGEST_LIST else "NAME")
        if metavar != listed and not set(choices) <= set(re.findall(r"[\w-]+", about)):
            about = f"{about} One of {', '.join(choices)}."
        more["autocompletion"] = completing(choices)
    return typer.Option(*names, help=about, metavar=metavar or None, rich_help_panel=panel or None, **more)


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function that completes a name, or the last one of several with commas.

    >>> completing(["flat", "ddp"])("ddp,f")
    ['ddp,flat']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def switch(about: str, panel: str, *names: str) -> Any:
    """Return the declaration of an option without a value; see `option`."""
    return option("", about, panel, *names)


def grouped(verb: Callable[..., Result]) -> Callable[..., Result]:
    """Give a verb the options of each parameter that is a group, in its place.

    A group is a dataclass with an `option` as the annotation of each field. The defaults of the options are
    those of the group, or those of the instance that is the parameter's default.
    """
    declared = inspect.signature(verb, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in declared.parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _options_of(parameter)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            parameters.append(parameter)

    signature = declared.replace(parameters=parameters)

    @wraps(verb)
    def command(*arguments: Any, **flags: Any) -> Result:
        bound = signature.bind(*arguments, **flags)
        bound.apply_defaults()
        values = bound.arguments
        check_options(OF_COMMANDS, _given_options(signature, values))
        made = {
            name: kind(**{option.name: values.pop(option.name) for option in fields(kind)})
            for name, kind in groups.items()
        }
        return verb(**values, **made)

    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def _given_options(signature: inspect.Signature, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are not those by default, by the option's name."""
    chosen = {}
    for name, parameter in signature.parameters.items():
        made = next(iter(get_args(parameter.annotation)[1:]), None)
        if isinstance(made, OptionInfo) and values[name] not in (None, parameter.default):
            chosen[_option_name(name, made)] = values[name]
    return chosen


def _option_name(parameter: str, made: OptionInfo) -> str:
    """Return the name of an option in messages: the longest one, but ``-n`` and ``-m``."""
    words = (made.default, *(made.param_decls or ()))  # typer takes the first name for a default
    names = [word.partition("/")[0] for word in words if isinstance(word, str) and word.startswith("-")]
    return next((name for name in names if name in _SHORT), max(names, key=len, default=flag(parameter)))


def _options_of(group: inspect.Parameter) -> list[inspect.Parameter]:
    kind: Any = group.annotation
    defaults = kind() if group.default is group.empty else group.default
    hints = get_type_hints(kind, include_extras=True)
    return [
        group.replace(name=field.name, default=getattr(defaults, field.name), annotation=hints[field.name])
        for field in fields(kind)
    ]


def with_flags_of(*kinds: type, only: Collection[str] = (), defaults: bool = False) -> Callable[[Verb], Verb]:
    """Give a verb a flag for each setting of the dataclasses `kinds`; it receives them as ``**settings``.

    Args:
        kinds: the dataclasses; fields without help have no flag.
        only: the names of the settings that have a flag; by default all.
        defaults: whether a flag that is not given has the default of its setting; otherwise it is None, so
            that the value of the recipe or of the site holds.
    """

    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb, eval_str=True)
        named = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        made = [
            _parameter(setting, get_type_hints(kind)[setting.name], defaults=defaults)
            for kind in kinds
            for setting in fields(kind)
            if setting.metadata and (not only or setting.name in only)
        ]
        verb.__signature__ = signature.replace(parameters=[*named, *made])  # type: ignore[attr-defined]
        return verb

    return decorate


def given_settings(settings: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """Return the settings whose flags were given, with the types of their dataclasses.

    Raises:
        UsageError: a list of numbers contains something else.
    """
    types = {field.name: get_type_hints(kind)[field.name] for kind in kinds for field in fields(kind)}
    chosen = {name: settings[name] for name in types if settings.get(name) not in (None, [])}
    for name, value in chosen.items():
        if types[name] == tuple[float, ...]:
            chosen[name] = _numbers(name, value)
        elif isinstance(value, list):
            chosen[name] = tuple(value)
    return chosen


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Return the command-line arguments of `settings`; None and empty ones are left out."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else f"--no-{flag(name)[2:]}")
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            words += [f"{flag(name)}={item}" for item in value]
        elif isinstance(value, tuple):
            words.append(f"{flag(name)}={','.join(map(str, value))}")
        elif value is not None:
            words.append(f"{flag(name)}={value}")
    return words


def _parameter(setting: Field[Any], kind: Any, *, defaults: bool) -> inspect.Parameter:
    about, panel, choices = (setting.metadata[key] for key in ("about", "panel", "choices"))
    name = flag(setting.name)
    kind = _kind(kind)
    usual = f"{name}/--no-{name[2:]}" if kind is bool else name
    names = setting.metadata["names"] or [usual]
    hidden = setting.metadata["hidden"]
    made = option(
        setting.metadata["metavar"],
        about,
        panel,
        *names,
        choices=choices,
        show_default=defaults,
        hidden=hidden,
    )
    asked = list[str] if kind is list else kind
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=setting.default if defaults else None,
        annotation=Annotated[asked | None, made],
    )


def _kind(kind: Any) -> Any:
    """Return the type that the command line parses for a setting of type `kind`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _kind(inner[0])
    if origin is Literal:
        return str
    if origin is tuple:
        return list if inner[0] is str else str
    return kind


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(item) for item in text.split(","))
    except ValueError:
        raise UsageError(f"{flag(name)} {text!r} is not a list of numbers such as 30,45.") from None
