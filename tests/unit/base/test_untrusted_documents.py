"""Documents from outside: every fault is a ValueError."""

import pytest

from samestep.base.errors import one_line
from samestep.base.untrusted_documents import DEPTH, parse_json, parse_toml


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [DEPTH + 1, 1000, 100_000])
def test_what_is_nested_too_deeply_is_refused(depth):
    with pytest.raises(ValueError, match=str(DEPTH)):
        parse_json(nested(depth))
    with pytest.raises(ValueError, match=str(DEPTH)):
        parse_toml("a = " + nested(depth))
    with pytest.raises(ValueError, match=str(DEPTH)):
        parse_toml(".".join("a" * min(depth, 5000)) + " = 1")


def test_what_is_nested_as_deeply_as_may_be_is_read():
    assert parse_json(nested(DEPTH)) is not None
    assert parse_toml("a = " + nested(DEPTH - 1))


def test_half_a_character_is_refused_and_a_whole_one_is_not():
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"
    with pytest.raises(ValueError, match=r"."):
        parse_json(r'["\ud800"]')


def test_a_message_is_one_line_whatever_it_quotes():
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("\x1b[31mred\udcff").isprintable()
    long = one_line("begin " + "9" * 100_000 + " end")
    assert long.startswith("begin")
    assert long.endswith("end")
    assert len(long) < 1000
