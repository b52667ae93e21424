"""Reads the configuration of a training from a flat TOML file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from samestep.base.config import read_toml
from samestep.base.errors import UsageError
from samestep.training.settings.run_options import RunOptions
from samestep.training.settings.training_settings import Settings

RECIPE_KEYS: Mapping[str, Any] = {
    "recipe": str,
    "fast": bool,
    "data": str,
    "model": str,
    "data_dir": str,
    "subset": int,
    "label": str,
}
"""Keys of the recipe, its data and its model; the other keys are those of `Settings` and `RunOptions`."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys of a configuration file, each converted to its type.

    Raises:
        UsageError: it cannot be read, or has an unknown key or a value of the wrong type.
    """
    found = read_toml(path)
    types = {**RECIPE_KEYS, **get_type_hints(Settings), **get_type_hints(RunOptions)}
    config = {}
    for name, value in found.items():
        if name not in types:
            raise UsageError(f"{path}: the key {name!r} is unknown. Use one of: {', '.join(sorted(types))}.")
        try:
            config[name] = _read(value, types[name])
        except TypeError:
            raise UsageError(f"{path}: {name} = {value!r} has the wrong type.") from None
    return config


def part_of(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the keys that are fields of the dataclass `kind`."""
    names = {one.name for one in dataclasses.fields(kind)}
    return {name: value for name, value in config.items() if name in names}


def _read(value: Any, kind: Any) -> Any:
    """Return a TOML value as the type `kind`; raise TypeError if it is another."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # always "or None", which TOML has no value for
        return _read(value, inner[0])
    if origin is tuple and isinstance(value, list):
        return tuple(_read(item, inner[0]) for item in value)
    if origin is Literal:
        return _read(value, str)  # `check` compares it with the choices
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError
    return value
