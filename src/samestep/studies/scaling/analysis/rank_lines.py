"""Validates the lines of a worker's file: the names that they need, and the values of each."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from samestep.base.step_phases import ALL

_MOST = 1e18
"""The largest valid count or time; the sum of larger ones overflows."""

_CPUS = re.compile(r"(\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*)?")
"""A list of processors in the notation of the Linux kernel."""


class _Value(NamedTuple):
    """A condition on a value, in words and as a function."""

    words: str
    is_right: Callable[[Any], bool]


def _number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -_MOST <= value <= _MOST  # false for nan


def _whole(value: Any) -> bool:
    return _number(value) and isinstance(value, int) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _or_null(value: _Value) -> _Value:
    return _Value(f"{value.words} or null", lambda found: found is None or value.is_right(found))


_WHOLE = _Value("an integer from 0", _whole)
_FROM_1 = _Value("an integer from 1", lambda value: _whole(value) and value > 0)
_COUNT = _Value("a number from 0", lambda value: _number(value) and value >= 0)
_TIME = _Value("a number", _number)
"""Negative if a device has several queues, whose events are not ordered."""
_TEXT = _Value("text", _text)
_TRUTH = _Value("true or false", lambda value: isinstance(value, bool))
_WORDS = _Value("a list of text", lambda value: isinstance(value, list) and all(map(_text, value)))
_NAMED = _Value("an object", lambda value: isinstance(value, dict))
_CPU_LIST = _Value("a list of processors", lambda value: _text(value) and bool(_CPUS.fullmatch(value)))

_ALWAYS: tuple[Mapping[str, _Value], Mapping[str, _Value]] = (
    {"rank": _WHOLE, "size": _FROM_1, "kind": _TEXT, "host": _TEXT},
    {"step": _WHOLE, "at": _TIME, "seconds": _TIME, "samples": _COUNT},
)
"""The required names of the first line, and of a step's line."""

_HEADER = {
    **_ALWAYS[0],
    **dict.fromkeys(("node", "warm_up"), _or_null(_WHOLE)),
    **dict.fromkeys(("nodes", "threads", "processors", "node_processors"), _or_null(_FROM_1)),
    "memory_bytes": _or_null(_WHOLE),
    **dict.fromkeys(("device", "device_id", "device_name", "processor", "backend", "sync"), _or_null(_TEXT)),
    **dict.fromkeys(("launcher", "system", "torch", "cuda", "hip", "nccl", "driver"), _or_null(_TEXT)),
    **dict.fromkeys(("python", "samestep"), _or_null(_TEXT)),
    "cpus": _CPU_LIST,
    "argv": _WORDS,
    "config": _or_null(_NAMED),
}
_STEP = {
    **_ALWAYS[1],
    **dict.fromkeys(ALL, _TIME),
    "loaded": _or_null(_COUNT),
    "elements": _COUNT,
    "exchange_bytes": _or_null(_WHOLE),
    "evaluated": _TRUTH,
}
_END = {
    "ended": _TEXT,
    "message": _TEXT,
    "made": _WHOLE,
    **dict.fromkeys(("peak_memory_bytes", "peak_device_bytes"), _or_null(_WHOLE)),
    "samples_per_epoch": _or_null(_COUNT),
}


def defect(number: int, row: object) -> str:
    """Return the defect of a line of a worker's file; empty for none.

    Args:
        number: of the line, from 1; the first is the header.
        row: its content.
    """
    is_step = number > 1
    if not isinstance(row, dict):
        return f"lacks {', '.join(_ALWAYS[is_step])}"
    is_end = is_step and "ended" in row
    missing = [] if is_end else [name for name in _ALWAYS[is_step] if name not in row]
    if missing:
        return f"lacks {', '.join(missing)}"
    known = _END if is_end else _STEP if is_step else _HEADER
    found = (name for name, value in known.items() if name in row and not value.is_right(row[name]))
    name = next(found, "")
    return f"has {name}, which is not {known[name].words}" if name else ""
