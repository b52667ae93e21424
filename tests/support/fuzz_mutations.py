"""Makes wrong content from right content: bytes, texts and forms of numbers."""

import json

ABSURD = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "-0",
    "+4",
    "007",
    "1e3",
    "1.5",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1e309",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "99999999",
    "-99999999",
    "1" * 50,
    "9" * 5000,
    "1_000",
    "0x10",
    "٣",
    "²",
    "५",
    "1٣",
    "Ⅷ",
    "1,2",
    "1,,2",
    ",",
    "1-3",
    "1:2",
    ":",
    "a",
    "None",
    "null",
    "true",
    "[]",
    "{}",
    "\x1b[31m1",
    "1\n2",
    "1 2",
    "é",
    "\udcff",
    "%s",
    "{0}",
    "1K",
    "4G",
    "9" * 30 + "G",
    "0B",
    "1e-400",
    "--help",
    "-",
    "1x1x1",
    "0x0x0",
    "1(x2)",
    "50%",
    "-5%",
)
"""What a number, a size, a list of them or a name may be given as."""

_LENGTHS = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x80\x00\x00\x00",
    b"\x00\x10\x00\x00",
)


def mutated(draw, content, *, others=()):
    """Return `content` with some faults; sometimes spliced with one of `others`.

    Args:
        draw: a `random.Random`.
        content: bytes.
        others: other valid contents.
    """
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        content = draw.choice(_FAULTS)(draw, content, others)
    return content


def _place(draw, content, width=1):
    """Return an index; early ones, where heads are, more often."""
    most = max(len(content) - width, 0)
    return draw.randint(0, min(most, 64)) if draw.random() < 0.5 else draw.randint(0, most)


def _flip(draw, content, others):
    if not content:
        return b"\x00"
    at = _place(draw, content)
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def _byte(draw, content, others):
    at = _place(draw, content)
    return content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]


def _cut(draw, content, others):
    return content[: _place(draw, content)]


def _without(draw, content, others):
    at = _place(draw, content)
    return content[:at] + content[at + draw.choice((1, 2, 4, 16, 256)) :]


def _twice(draw, content, others):
    at, length = _place(draw, content), draw.choice((1, 4, 16, 256, len(content)))
    return (
        content[: at + length] + content[at : at + length] * draw.choice((1, 1, 50)) + content[at + length :]
    )


def _splice(draw, content, others):
    other = draw.choice(others) if others else content[::-1]
    return content[: _place(draw, content)] + other[_place(draw, other) :]


def _length(draw, content, others):
    at, length = _place(draw, content, 4), draw.choice(_LENGTHS)
    return content[:at] + (length if draw.random() < 0.5 else length[::-1]) + content[at + 4 :]


def _noise(draw, content, others):
    at = _place(draw, content)
    return content[:at] + draw.randbytes(draw.choice((1, 8, 64, 1024))) + content[at:]


def _nothing(draw, content, others):
    return draw.choice((b"", b"\x00" * 4096, b"\n", draw.randbytes(100)))


def _nested(draw, content, others):
    at, depth = _place(draw, content), draw.choice((50, 1000, 100_000))
    one = draw.choice((b"[", b"{", b"(", b'{"a":', b"[[", b"-", b'"', b"a."))
    return content[:at] + one * depth + content[at:]


def _number(draw, content, others):
    """Replace the digits at some place by another form of a number."""
    places = [at for at, byte in enumerate(content[:20_000]) if byte in b"0123456789"]
    if not places:
        return _byte(draw, content, others)
    begin = end = draw.choice(places)
    while end < len(content) and content[end] in b"0123456789.":
        end += 1
    value = draw.choice(ABSURD).encode("utf-8", "surrogateescape")
    return content[:begin] + value + content[end:]


_FAULTS = (
    _flip,
    _byte,
    _cut,
    _without,
    _twice,
    _splice,
    _length,
    _noise,
    _nothing,
    _nested,
    _number,
    _number,
)


def mutated_json(draw, value, depth=0):
    """Return a JSON value with a part of it replaced, removed or repeated."""
    if depth and draw.random() < 0.15:
        return draw.choice(JSON_VALUES)
    if isinstance(value, dict) and value:
        key = draw.choice(sorted(value))
        changed = dict(value)
        if draw.random() < 0.15:
            del changed[key]
        else:
            changed[key] = mutated_json(draw, value[key], depth + 1)
        return changed
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        if draw.random() < 0.2:
            return draw.choice((value[:at], value + value[at:], value * 40))
        return [*value[:at], mutated_json(draw, value[at], depth + 1), *value[at + 1 :]]
    return draw.choice(JSON_VALUES)


JSON_VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    1.5,
    -0.0,
    1e308,
    1e-308,
    10**30,
    -(10**30),
    2**53,
    10**400,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "1",
    "\x1b[31m",
    "\ud800",
    "<script>",
    "a" * 100_000,
    [],
    [None],
    [1],
    {},
    {"a": 1},
    [[[[]]]],
    [1e300] * 3,
    {"": None},
)
"""What a JSON value may be in place of another."""


def as_json(value):
    """Return a value as the bytes of JSON, NaN and lone surrogates too."""
    return json.dumps(value).encode()
