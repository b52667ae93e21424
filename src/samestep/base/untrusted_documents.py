"""Parses untrusted JSON and TOML: every fault is a `ValueError`, and the depth of nesting is limited."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOML_BYTES = 128 << 10
"""The largest TOML file that is read; its parser takes quadratic time where tables are nested."""
DEPTH = 64
"""The deepest nesting of lists and objects that is accepted, since readers walk them by recursion."""


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or holds half of a surrogate pair.
    """
    found = _parsed(json.loads, text)
    if "\\ud" in text.lower():  # half of a pair of surrogates can be neither printed nor written
        json.dumps(found, ensure_ascii=False).encode()
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: the text is not TOML, or is nested too deeply.
    """
    tables: dict[str, Any] = _parsed(tomllib.loads, text)
    return tables


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """Return the value of a text, unless it is nested too deeply."""
    with suppress(RecursionError):
        level = [found := parse(text)]
        for _ in range(DEPTH):
            level = [inner for outer in level for inner in _inside(outer)]
            if not level:
                return found
    raise ValueError(f"it is nested more than {DEPTH} deep")


def _inside(value: Any) -> list[Any]:
    """Return the lists and objects directly within a list or an object."""
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    return [inner for inner in value if isinstance(inner, dict | list)] if isinstance(value, list) else []
