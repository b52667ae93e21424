"""Every fault of a document from outside is a ValueError."""

import pytest

from samestep.base.errors import one_line
from samestep.base.untrusted_documents import DEPTH, parse_json, parse_toml


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
