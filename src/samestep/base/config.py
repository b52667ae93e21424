"""Reads the user's configuration file, which holds the settings of a site.

The file is ``~/.config/samestep/config.toml``, or below ``XDG_CONFIG_HOME``. Each table belongs to a
dataclass, whose fields are its keys; a key may be spelled with dashes or underscores.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from samestep.base.documents import TOML_BYTES, FormatError, parse_toml, read_as
from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.regular_files import read_text

TABLES = ("slurm", "kubernetes")
"""Names of tables that the file can have; see `samestep.submit.site_defaults`."""

Table = TypeVar("Table")


def config_path(environment: Environment) -> Path:
    """Return the path of the user's configuration file, which need not exist."""
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    # `Path.home` raises for a user without a home folder, as in a container with a foreign user id.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111
    folder = base if base.is_absolute() else home / ".config"  # the XDG standard ignores relative ones
    return folder / "samestep" / "config.toml"


def read_toml(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """Return the contents of a configuration file; an empty dict if `missing_ok` and there is no file.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        return parse_toml(read_text(path, most=TOML_BYTES))
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return {}
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"the configuration {path} is not valid TOML: {error}.") from None


def _read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a configuration file; none where there is no file.

    Raises:
        UsageError: the file cannot be read, is not TOML, or has an unknown table.
    """
    tables = read_toml(path, missing_ok=True)
    for name, value in tables.items():
        if name not in TABLES:
            raise UsageError(f"{path}: there is no table {name!r}. {suggestion(name, TABLES)}")
        if not isinstance(value, Mapping):
            raise UsageError(f"{path}: {name} is a table: write [{name}] on a line of its own.")
    return tables


def table(path: Path, name: str, kind: type[Table]) -> Table:
    """Return table `name` of a configuration file as `kind`, a dataclass whose fields all have defaults.

    If there is no file, all fields keep the defaults of `kind`; see `samestep.base.documents.reader` for
    their types.

    Raises:
        UsageError: the file is wrong, or a key is unknown or of the wrong type.
    """
    types = get_type_hints(kind)
    known = [setting.name for setting in fields(kind)]  # type: ignore[arg-type]
    settings = {}
    for key, value in _read_tables(path).get(name, {}).items():
        plain = key.replace("-", "_")
        if plain not in known:
            raise UsageError(f"{path}: [{name}] has no key {key!r}. {suggestion(plain, known)}")
        is_time = types[plain] is str and type(value) is int  # such as a time in minutes
        try:
            read = str(value) if is_time else read_as(types[plain], value, f"[{name}] {key} = {value!r}")
        except FormatError as error:
            raise UsageError(f"{path}: {error}.") from None
        settings[plain] = read
    return kind(**settings)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a sentence with the known name that is like a wrong one, or with all known names.

    >>> suggestion("wrokers", ["workers", "threads"]), suggestion("x", ["workers", "threads"])
    ("Did you mean 'workers'?", 'Use one of: threads, workers.')
    """
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Use one of: {', '.join(sorted(known))}."
