"""Reads and writes ``study.json``, a study on disk."""

import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from samestep.base.errors import UsageError
from samestep.base.record import write_json
from samestep.base.regular_files import read_text
from samestep.base.untrusted_documents import parse_json
from samestep.studies.scaling.analysis.study import FORMAT, PHASES, Point, Seconds, Study

NAME = "study.json"
"""The name of the file in a study's folder."""

_BYTES = 32 << 20
"""The largest file that is read; a study of a thousand workers has some megabytes."""


def write_study(path: Path, study: Study) -> None:
    """Write `study` to `path` atomically: a reader finds the old file or the new one.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_json(path, as_json(study))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from None


def as_json(study: Study) -> dict[str, Any]:
    """Return `study` as ``study.json`` holds it."""
    return asdict(study)


def read_study(path: Path) -> Study:
    """Return the study in `path`, or in the ``study.json`` of the folder `path`.

    Raises:
        UsageError: there is none, it is damaged, or it has another format; names the place.
    """
    file = path / NAME if path.is_dir() else path
    try:
        found = parse_json(read_text(file, most=_BYTES, errors="replace"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"{file} is damaged: it is not JSON ({error}).") from None
    if not isinstance(found, dict) or not {"format", "points"} <= found.keys():
        raise UsageError(f"{file} is not a study: it lacks format or points.")
    if found["format"] != FORMAT:
        raise UsageError(
            f"{file} is of format {found['format']}, and this version of samestep reads {FORMAT}: "
            "read it with the version that wrote it."
        )
    try:
        study: Study = _read(Study, found, "study")
        _check(study)
    except _StudyFormatError as error:
        raise UsageError(f"{file} is damaged: {error}.") from None
    return study


def _check(study: Study) -> None:
    """Raise `_StudyFormatError` for values of the right type that are impossible, such as a rate of 0."""
    if study.verdict is not None and not study.points:
        raise _StudyFormatError("study has a verdict and no points")
    for number, point in enumerate(study.points):
        where = f"study.points[{number}]"
        for name in ("workers", "nodes", "samples_per_second", "speedup", "efficiency"):
            _expect(point, f"{where}.{name}", "above 0", is_right=getattr(point, name) > 0)
        _check_step(point.step_s, f"{where}.step_s")
        for place, rank in enumerate(point.ranks):
            _check_step(rank.step_s, f"{where}.ranks[{place}].step_s")
        for name, rate in _rates(point):
            _expect(point, f"{where}.{name}", "above 0", is_right=rate > 0)
        _check_timeline(point, f"{where}.timeline")


def _check_step(step_s: Seconds, where: str) -> None:
    """Raise `_StudyFormatError` if some phases of a step are missing, or negative."""
    missing = [name for name in PHASES if name not in step_s]
    if step_s and missing:
        raise _StudyFormatError(f"{where} lacks {', '.join(missing)}")
    for name, seconds in step_s.items():
        _expect(seconds, f"{where}.{name}", "a time", is_right=seconds >= 0)


def _check_timeline(point: Point, where: str) -> None:
    """Raise `_StudyFormatError` if a time line lacks workers, or has an unknown phase."""
    if point.timeline and len(point.timeline) != point.workers:
        raise _StudyFormatError(
            f"{where} is of {len(point.timeline)} workers, and the point of {point.workers}"
        )
    for rank, spans in enumerate(point.timeline):
        for number, span in enumerate(spans):
            at = f"{where}[{rank}][{number}]"
            _expect(span, at, f"one of {', '.join(PHASES)}", is_right=span.phase in PHASES)


def _rates(point: Point) -> Iterator[tuple[str, float]]:
    """Yield the optional rates and sizes of a point that are known, by name."""
    of_rates = ("samples_per_second_low", "samples_per_second_high", "speedup_low", "speedup_high")
    for name in (*of_rates, "global_batch", "exchange_bytes"):
        if (value := getattr(point, name)) is not None:
            yield name, value
    yield from ((f"runs[{number}]", rate) for number, rate in enumerate(point.runs))


_MOST = 1e300
"""The largest valid number; larger ones overflow in products."""

_VALUES: dict[Any, tuple[Any, str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    bool: (bool, "true or false"),
}


class _StudyFormatError(Exception):
    """A value of a study has the wrong type or an impossible value; names its place."""


def _read(kind: Any, found: Any, where: str) -> Any:
    """Return the JSON value `found` as a value of the type `kind`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if found is None else _read(inner[0], found, where)
    read: Callable[[Any, Any, str], Any] = _read_value
    if is_dataclass(kind):
        read = _read_fields
    elif origin is tuple:
        kind, read = inner[0], _read_items
    elif origin is not None and origin is not Literal:
        kind, read = inner[1], _read_mapping
    elif hasattr(kind, "_fields"):
        read = _read_named_tuple
    return read(kind, found, where)


def _read_value(kind: Any, found: Any, where: str) -> Any:
    if kind is Any:
        return found
    if get_origin(kind) is Literal:
        return _expect(found, where, f"one of {', '.join(get_args(kind))}", is_right=found in get_args(kind))
    types_of, what = _VALUES[kind]
    is_right = isinstance(found, types_of) and (kind is bool or not isinstance(found, bool))
    is_right = is_right and (kind not in (int, float) or abs(found) <= _MOST)  # false for nan
    return kind(_expect(found, where, what, is_right=is_right))


def _read_fields(kind: Any, found: Any, where: str) -> Any:
    """Return a dataclass; unknown fields are ignored, since a later version can add some."""
    _expect(found, where, "an object", is_right=isinstance(found, dict))
    types_of = get_type_hints(kind)
    values = {}
    for one in fields(kind):
        if one.name in found:
            values[one.name] = _read(types_of[one.name], found[one.name], f"{where}.{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise _StudyFormatError(f"{where} lacks {one.name}")
    return kind(**values)


def _read_items(kind: Any, found: Any, where: str) -> Any:
    _expect(found, where, "a list", is_right=isinstance(found, list))
    return tuple(_read(kind, item, f"{where}[{number}]") for number, item in enumerate(found))


def _read_mapping(kind: Any, found: Any, where: str) -> Any:
    _expect(found, where, "an object", is_right=isinstance(found, dict))
    return {name: _read(kind, value, f"{where}.{name}") for name, value in found.items()}


def _read_named_tuple(kind: Any, found: Any, where: str) -> Any:
    types_of = get_type_hints(kind)
    is_right = isinstance(found, list) and len(found) == len(types_of)
    _expect(found, where, f"a list of {', '.join(types_of)}", is_right=is_right)
    return kind(*(_read(one, item, where) for one, item in zip(types_of.values(), found, strict=True)))


def _expect(found: Any, where: str, what: str, *, is_right: bool) -> Any:
    if not is_right:
        raise _StudyFormatError(f"{where} is not {what}")
    return found
