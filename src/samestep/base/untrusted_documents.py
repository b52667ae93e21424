"""Parses untrusted JSON and TOML: every fault is a `ValueError`, and the depth of nesting is limited."""

import json
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOML_BYTES = 128 << 10
"""The largest TOML file that is read; its parser takes quadratic time where tables are nested."""
DEPTH = 64
"""The deepest nesting of lists and objects that is accepted, since readers walk them by recursion."""

_TOO_DEEP = f"it is nested more than {DEPTH} deep"


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or holds half of a surrogate pair.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(found)
    if "\\ud" in text.lower():  # half of a pair of surrogates can be neither printed nor written
        json.dumps(found, ensure_ascii=False).encode()
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: the text is not TOML, or is nested too deeply.
    """
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(found)
    return found


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _inside(value: Any) -> list[Any]:
    """Return the lists and objects directly within a list or an object."""
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    return [inner for inner in value if isinstance(inner, dict | list)] if isinstance(value, list) else []
