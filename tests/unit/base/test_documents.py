"""JSON values are read as typed values, or refused with the path of the wrong value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from samestep.base.documents import (
    DEPTH,
    FormatError,
    NotNegative,
    PositiveInt,
    parse_json,
    parse_toml,
    read_as,
    read_json,
)
from samestep.base.errors import UsageError, one_line


class Pair(NamedTuple):
    name: str
    seconds: NotNegative


@dataclass(frozen=True)
class Inner:
    count: PositiveInt
    mode: Literal["strong", "weak"] = "strong"


@dataclass(frozen=True)
class Outer:
    path: Path
    inner: tuple[Inner, ...] = ()
    pair: Pair | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    is_on: bool = False
    anything: Any = None


def test_all_kinds_of_values_are_read():
    found = {
        "path": "a/b",
        "inner": [{"count": 2}, {"count": 1, "mode": "weak", "of a later version": 1}],
        "pair": ["x", 3],
        "shares": {"a": 0},
        "is_on": True,
        "anything": [{}],
    }

    outer = read_as(Outer, found, "outer")

    assert outer == Outer(
        Path("a/b"), (Inner(2), Inner(1, "weak")), Pair("x", 3.0), {"a": 0.0}, is_on=True, anything=[{}]
    )
    assert isinstance(outer.pair.seconds, float)
    assert read_as(Outer, {"path": "a", "pair": None}, "outer") == Outer(Path("a"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"path": 1}, "outer.path is not a string"),
        ({"inner": {}}, "outer.inner is not a list"),
        ({"inner": [3]}, "outer.inner[0] is not an object"),
        ({"inner": [{}]}, "outer.inner[0] lacks count"),
        ({"inner": [{"count": True}]}, "outer.inner[0].count is not an integer"),
        ({"inner": [{"count": 1.0}]}, "outer.inner[0].count is not an integer"),
        ({"inner": [{"count": 0}]}, "outer.inner[0].count is not above 0"),
        ({"inner": [{"count": 1, "mode": "x"}]}, "outer.inner[0].mode is not one of strong, weak"),
        ({"inner": [{"count": 1, "mode": []}]}, "outer.inner[0].mode is not one of strong, weak"),
        ({"pair": ["x"]}, "outer.pair is not a list of name, seconds"),
        ({"pair": ["x", -1]}, "outer.pair is negative"),
        ({"shares": {"a": math.nan}}, "outer.shares.a is not a number"),
        ({"shares": {"a": math.inf}}, "outer.shares.a is not a number"),
        ({"shares": [1]}, "outer.shares is not an object"),
        ({"is_on": 0}, "outer.is_on is not true or false"),
    ],
)
def test_the_error_names_the_wrong_value(changes, problem):
    with pytest.raises(FormatError) as error:
        read_as(Outer, {"path": "a"} | changes, "outer")

    assert str(error.value) == problem


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{")

    with pytest.raises(UsageError, match=r"a\.json is damaged: it is not JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"cannot read .*: No such file or directory\. Give one\.$"):
        read_json(tmp_path / "none.json", hint="Give one.")


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [DEPTH + 1, 1000, 100_000])
def test_documents_nested_too_deeply_are_refused(depth):
    with pytest.raises(ValueError, match=str(DEPTH)):
        parse_json(nested(depth))
    with pytest.raises(ValueError, match=str(DEPTH)):
        parse_toml("a = " + nested(depth))
    with pytest.raises(ValueError, match=str(DEPTH)):
        parse_toml(".".join("a" * min(depth, 5000)) + " = 1")


def test_documents_of_the_largest_depth_are_read():
    assert parse_json(nested(DEPTH)) is not None
    assert parse_toml("a = " + nested(DEPTH - 1))


def test_half_a_surrogate_pair_is_refused_and_a_complete_one_is_read():
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"
    with pytest.raises(ValueError, match=r"."):
        parse_json(r'["\ud800"]')


def test_a_message_is_one_short_printable_line_for_any_quoted_text():
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("\x1b[31mred\udcff").isprintable()
    long = one_line("begin " + "9" * 100_000 + " end")
    assert long.startswith("begin")
    assert long.endswith("end")
    assert len(long) < 1000
