"""Reads the table of the tutorials' items: which command has to print which lines."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorials.md"
_COMMAND = re.compile(r"`((?:samestep|python|torchrun) [^`]*)`")
TOLERANCE = 0.02


def rows() -> list[tuple[str, str, str]]:
    """Return item, command or page, and output of each row."""
    items = PAGE.read_text().partition("\n## The tutorials' own settings\n")[0]
    lines = [line.strip("| \n").split(" | ") for line in items.splitlines() if line[:2] == "| "]
    cells = [[cell.strip(" |") for cell in line] + [""] * (3 - len(line)) for line in lines]
    return [(item, where, printed) for item, where, printed in cells if item != "item"]


def commands() -> dict[str, list[str]]:
    """Return the lines that each command of the table has to print."""
    found: dict[str, list[str]] = {}
    for _, where, printed in rows():
        if command := _COMMAND.fullmatch(where):
            found.setdefault(command[1], []).extend(re.findall("`(.+?)`", printed))
    return found


def prints(output: str, line: str) -> bool:
    """Return whether `output` has the line: ``...`` is any text, and decimals can differ by `TOLERANCE`."""
    expected: list[float] = []
    pattern = []
    for part in re.split(r"(\.\.\.|\s+|\d+\.\d+)", line):
        if part == "...":
            pattern.append(r".*?")
        elif part.isspace():
            pattern.append(r"\s+")
        elif re.fullmatch(r"\d+\.\d+", part):
            expected.append(float(part))
            pattern.append(r"(\d+(?:\.\d+)?)")
        else:
            pattern.append(re.escape(part))
    for found in re.finditer("".join(pattern), output, re.DOTALL):
        pairs = zip(map(float, found.groups()), expected, strict=True)
        if all(abs(one - other) <= TOLERANCE * abs(other) for one, other in pairs):
            return True
    return False
