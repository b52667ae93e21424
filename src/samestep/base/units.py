"""Formats and parses bytes, seconds, counts and rates as people write them."""

import re
from collections.abc import Collection

from samestep.base.errors import UsageError

LONGEST_S = 1e9
"""The longest timeout in seconds, some thirty years: threads and sockets accept little more."""

MOST_WORKERS = 2**16
"""The most workers of one job: a larger number is a typing error, and each worker is planned for."""

_LONGEST_QUOTE = 300  # characters of a message of the script in one of samestep: a guess, some lines

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")
_SECONDS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_LEAST = 0.9995  # of a unit: it is printed as 1, and what is less as at most 999 of the next smaller unit


def one_line(text: str) -> str:
    r"""Return a message of the script in one line, shortened.

    >>> one_line("no such\n  file")
    'no such file'
    """
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 3]}..."


def bytes_of(flag: str, text: str) -> int:
    """Parse a number of bytes, such as 4, 64K, 25MiB; units are powers of 1024.

    Raises:
        UsageError: the text is not a size.
    """
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)(?:I?B)?", text.strip().upper())
    if match is None or not int(match[1]):
        raise UsageError(f"{flag} {text!r} is not a size such as 4, 64K or 25MiB.")
    return int(match[1]) << _UNITS[match[2]]


def whole(text: str) -> int | None:
    """Return the integer in a text of 1 to 18 ASCII digits, or None.

    Python's `int` also accepts digits of other scripts, underscores and numbers of any size.

    >>> whole("12"), whole("-1"), whole("\u0663")
    (12, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, in the plural where needed.

    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def ranges(numbers: Collection[int], *, separator: str = ",") -> str:
    """Return numbers as ranges, as the kernel's lists have them.

    >>> ranges({8, 0, 1, 2, 3}), ranges([3, 0, 1, 2, 7], separator=", ")
    ('0-3,8', '0-3, 7')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def format_ranks(ranks: Collection[int]) -> str:
    """Return ranks as text: ``rank 1``, ``ranks 0, 2-5``."""
    return f"rank{verb(ranks, '', 's')} {ranges(ranks, separator=', ')}"


def verb(ranks: Collection[int], singular: str, plural: str) -> str:
    """Return the form of a verb that fits a number of ranks."""
    return singular if len(ranks) == 1 else plural


def bytes_text(count: float) -> str:
    """Return a number of bytes in powers of 1024.

    >>> bytes_text(1536)
    '1.5 KiB'
    """
    return _scaled(count, 1024, _BINARY)


def count_text(count: float) -> str:
    """Return a count in powers of 1000.

    >>> count_text(11_690_000)
    '11.7 M'
    """
    return _scaled(count, 1000, _DECIMAL).rstrip()


def rate_text(per_second: float, unit: str) -> str:
    """Return a rate in powers of 1000.

    >>> rate_text(12_345, "samples")
    '12.3 k samples/s'
    """
    return f"{count_text(per_second)} {unit}/s"


def seconds_text(seconds: float) -> str:
    """Return a duration with a suitable unit.

    >>> [seconds_text(s) for s in (0.00123, 12.34, 75, 7384)]
    ['1.23 ms', '12.3 s', '1 min 15 s', '2 h 3 min']
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    for unit, factor in _SECONDS:
        if abs(seconds) * factor >= _LEAST:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"


def check_seconds(flag: str, seconds: float, *, zero: str = "") -> None:
    """Check a time limit.

    `zero` is the effect of 0; empty where 0 is not allowed.

    Raises:
        UsageError: the value is negative, not finite or too large, or 0 where that is not allowed.
    """
    if not 0 <= seconds <= LONGEST_S or (seconds == 0 and not zero):
        expected = f"a number of seconds (0 {zero})" if zero else "a positive number of seconds"
        raise UsageError(f"{flag} is {seconds:g}; give {expected}, at most {LONGEST_S:g}.")


def check_hang_timeout(seconds: float) -> None:
    """Check the value of ``--hang-timeout``.

    Raises:
        UsageError: it is not a time limit.
    """
    check_seconds("--hang-timeout", seconds, zero="disables the check")


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < step - 0.5:
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
        value /= step
    return f"{value:.3g} {units[-1]}"


def percent(share: float) -> str:
    """Return a share as a whole percentage.

    >>> percent(0.849)
    '85 %'
    """
    return f"{100 * share:.0f} %"
