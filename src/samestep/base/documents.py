"""Reads untrusted JSON and TOML, and JSON values as typed values: dataclasses, tuples, checked numbers.

Every fault of a text is a `ValueError`, and the depth of nesting is limited.
"""

import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from samestep.base.errors import UsageError
from samestep.base.regular_files import TEXT_BYTES, read_lines, read_text

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
    value = _parsed(json.loads, text)
    if "\\ud" in text.lower():  # half of a pair of surrogates can be neither printed nor written
        json.dumps(value, ensure_ascii=False).encode()
    return value


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
        level = [document := parse(text)]
        for _ in range(DEPTH):
            level = [inner for outer in level for inner in _inside(outer)]
            if not level:
                return document
    raise ValueError(f"it is nested more than {DEPTH} deep")


def _inside(value: Any) -> list[Any]:
    """Return the lists and objects directly within a list or an object."""
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    return [inner for inner in value if isinstance(inner, dict | list)] if isinstance(value, list) else []


Check: TypeAlias = Callable[[Any], str]
"""Returns the problem of a value, such as ``is not above 0``; empty for none."""

Reader: TypeAlias = Callable[[Any, str], Any]
"""Returns a JSON value as a typed value; the text is its place, such as ``study.points[1]``."""

_MOST = 1e100  # the largest valid number; sums and products of larger ones overflow

_VALUES: dict[Any, tuple[type | tuple[type, ...], str]] = {
    str: (str, "a string"),
    int: (int, "an integer"),
    float: ((int, float), "a number"),
    bool: (bool, "true or false"),
    Path: (str, "a string"),
}


class FormatError(ValueError):
    """A JSON value has the wrong type, or is an impossible value; the message names its place."""


def _above_0(value: float) -> str:
    return "" if value > 0 else "is not above 0"


def _from_0(value: float) -> str:
    return "" if value >= 0 else "is negative"


Positive: TypeAlias = Annotated[float, _above_0]
NotNegative: TypeAlias = Annotated[float, _from_0]
PositiveInt: TypeAlias = Annotated[int, _above_0]
WholeNumber: TypeAlias = Annotated[int, _from_0]


def read_json(path: Path, *, most: int = TEXT_BYTES, hint: str = "") -> Any:
    """Return the JSON value in a file.

    Args:
        path: the file.
        most: its maximum size in bytes.
        hint: what to do if it cannot be read, as a sentence.

    Raises:
        UsageError: it cannot be read, or is not JSON.
    """
    try:
        return parse_json(read_text(path, most=most, errors="replace"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. {hint}".rstrip()) from None
    except ValueError as error:
        raise UsageError(f"{path} is damaged: it is not JSON ({error}).") from None


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line; an incomplete last one, as of a killed process, is ignored.

    Raises:
        OSError: the file cannot be read.
        UsageError: a line is not JSON.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            value = parse_json(line)
        except ValueError:
            if not line.endswith("\n"):
                return
            raise UsageError(f"{path} is damaged: line {number} is not JSON.") from None
        yield number, value


def read_as(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as a value of the type `kind`, see `reader`.

    Raises:
        FormatError: the value is not of that type.
    """
    return reader(kind)(value, where)


@cache
def reader(kind: Any) -> Reader:
    """Return the function that reads values of a type.

    Args:
        kind: `str`, `int`, `float`, `bool`, `Path`, `Any`, a dataclass, a named tuple; of these a tuple
            of any length, a mapping of text, a `Literal`, an optional, or an `Annotated` type with `Check`s.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _fields(kind)
    if hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if origin is Annotated:
        return _checked(reader(inner[0]), inner[1:])
    if origin in (Union, types.UnionType):
        read = reader(inner[0])
        return lambda value, where: None if value is None else read(value, where)
    if origin is not None and origin is not Literal:
        return _items(reader(inner[0])) if origin is tuple else _mapping(reader(inner[1]))
    return _value(kind)


def _expect(is_right: bool, where: str, expected: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not is_right:
        raise FormatError(f"{where} is not {expected}")


def _value(kind: Any) -> Reader:
    if kind is Any:
        return lambda value, where: value  # noqa: ARG005 - a reader
    options = get_args(kind)
    kinds: Any
    kinds, expected = (str, f"one of {', '.join(options)}") if options else _VALUES[kind]

    is_number = kind in (int, float)

    def read(value: Any, where: str) -> Any:
        is_right = isinstance(value, kinds) and (not options or value in options)
        if is_right and is_number:
            is_right = not isinstance(value, bool) and -_MOST <= value <= _MOST  # nan is not in the range
        _expect(is_right, where, expected)
        return value if options else kind(value)

    return read


def _checked(read: Reader, checks: Sequence[Check]) -> Reader:
    def checked(raw: Any, where: str) -> Any:
        value = read(raw, where)
        for check in checks:
            if problem := check(value):
                raise FormatError(f"{where} {problem}")
        return value

    return checked


def _fields(kind: Any) -> Reader:
    """Return the reader of a dataclass; it ignores unknown fields, since a later version can add some."""
    hints = get_type_hints(kind, include_extras=True)
    readers = {field.name: reader(hints[field.name]) for field in fields(kind)}
    needed = [
        field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    ]

    def read(record: Any, where: str) -> Any:
        _expect(isinstance(record, dict), where, "an object")
        missing = [name for name in needed if name not in record]
        if missing:
            raise FormatError(f"{where} lacks {', '.join(missing)}")
        present = {name: read_field for name, read_field in readers.items() if name in record}
        return kind(
            **{name: read_field(record[name], f"{where}.{name}") for name, read_field in present.items()}
        )

    return read


def _named_tuple(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = [reader(hint) for hint in hints.values()]

    def read(values: Any, where: str) -> Any:
        is_right = isinstance(values, list) and len(values) == len(readers)
        _expect(is_right, where, f"a list of {', '.join(hints)}")
        return kind(*(read_item(item, where) for read_item, item in zip(readers, values, strict=True)))

    return read


def _items(read: Reader) -> Reader:
    def items(values: Any, where: str) -> Any:
        _expect(isinstance(values, list), where, "a list")
        return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(values))

    return items


def _mapping(read: Reader) -> Reader:
    def mapping(record: Any, where: str) -> Any:
        _expect(isinstance(record, dict), where, "an object")
        return {name: read(value, f"{where}.{name}") for name, value in record.items()}

    return mapping
