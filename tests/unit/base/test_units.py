"""Numbers are printed with units, and sizes with units are parsed."""

import re

import pytest

from samestep.base.errors import UsageError
from samestep.base.units import bytes_of, bytes_text, count_text, rate_text, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (25 * 2**30, "25 GiB"),
        (2**52, "4 PiB"),
    ],
)
def test_bytes_are_printed_in_powers_of_1024(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [("4", 4), ("64K", 65536), ("64KiB", 65536), ("25MiB", 25 << 20), ("1g", 1 << 30), ("8B", 8)],
)
def test_sizes_with_a_unit_are_parsed(text, count):
    assert bytes_of("--sizes", text) == count


@pytest.mark.parametrize("text", ["", "0", "-4", "x", "4T", "1.5M"])
def test_an_invalid_size_is_refused_with_its_flag_and_value(text):
    with pytest.raises(UsageError, match=f"--min '{re.escape(text)}'"):
        bytes_of("--min", text)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (999_999, "1 M"), (-1500, "-1.5 k")]
)
def test_counts_are_printed_in_powers_of_1000(count, text):
    assert count_text(count) == text


def test_rates_are_printed_with_the_name_of_their_items():
    assert rate_text(12_345, "samples") == "12.3 k samples/s"
    assert rate_text(7, "steps") == "7 steps/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2e-9, "2 ns"),
        (4.2e-6, "4.2 us"),
        (9.996e-7, "1 us"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (59.4, "59.4 s"),
        (59.7, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (7384, "2 h 3 min"),
    ],
)
def test_seconds_are_printed_in_the_unit_of_their_size(seconds, text):
    assert seconds_text(seconds) == text
