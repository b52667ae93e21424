"""Writes runs and measurements as JSON files, atomically."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from samestep.base.machine.description import machine
from samestep.base.unfinished_names import write_whole

SCHEMA = 1
"""The version of the format, which every record holds as ``schema``."""

_NAME = "samestep"


def provenance() -> dict[str, Any]:
    """Return the origin of a record: time, command and machine."""
    return {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command(),
        "machine": asdict(machine()),
    }


def command() -> list[str]:
    """Return the command as the user has typed it; a forked worker has other arguments."""
    typed = sys.orig_argv
    for place, word in enumerate(typed[1:], 1):
        is_entry_point = Path(word).is_absolute() and Path(word).name == _NAME
        if is_entry_point or typed[place - 1 : place + 1] == ["-m", _NAME]:
            return [_NAME, *typed[place + 1 :]]
    return sys.argv


def write_json(path: Path, record: Mapping[str, Any], *, identity: str | None = None) -> None:
    """Write `record` to `path` as indented JSON, atomically; numbers that are not finite become null.

    The record has plain values; see `write_whole` for the identity.
    """
    text = json.dumps(map_values(record, _finite), indent=2, allow_nan=False)
    write_whole(path, [text, "\n"], identity=identity)


def json_line(record: Mapping[str, Any]) -> str:
    """Return `record` as one line of JSON; a number that is not finite is null."""
    return json.dumps(map_values(record, _finite), allow_nan=False)


def map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return JSON data with `change` applied to each value in its lists and objects."""
    if isinstance(value, Mapping):
        return {name: map_values(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_values(item, change) for item in value]
    return change(value)


def _finite(value: Any) -> Any:
    """Return null for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
