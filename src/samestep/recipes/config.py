"""A training's configuration at rest: one flat TOML file, written and read alike."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from samestep.base.config import read_toml
from samestep.base.errors import UsageError
from samestep.training.conduct import Conduct
from samestep.training.settings import Settings

WHAT: Mapping[str, Any] = {
    "recipe": str,
    "fast": bool,
    "data": str,
    "model": str,
    "data_dir": str,
    "subset": int,
    "label": str,
}
"""What is trained on what; the other keys are those of `Settings` and `Conduct`."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys of a configuration file, each of its type.

    Raises:
        UsageError: it cannot be read, or holds a key or a type that is not known.
    """
    found = read_toml(path)
    types = {**WHAT, **get_type_hints(Settings), **get_type_hints(Conduct)}
    config = {}
    for name, value in found.items():
        if name not in types:
            raise UsageError(f"{path}: nothing is called {name!r}. Known are: {', '.join(sorted(types))}.")
        try:
            config[name] = _read(value, types[name])
        except TypeError:
            raise UsageError(f"{path}: {name} = {value!r} is of the wrong type.") from None
    return config


def part_of(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the keys that are settings of the dataclass `kind`."""
    names = {one.name for one in dataclasses.fields(kind)}
    return {name: value for name, value in config.items() if name in names}


def _read(value: Any, kind: Any) -> Any:
    """Return what TOML gave as the type that is wanted; TypeError where it is another."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # only ever "or None", which TOML cannot say
        return _read(value, inner[0])
    if origin is tuple and isinstance(value, list):
        return tuple(_read(item, inner[0]) for item in value)
    if origin is Literal:
        return _read(value, str)  # whether it is one of those is checked with the other settings
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError
    return value
