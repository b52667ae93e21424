"""Reads and writes the table of scripts and launchers on its page.

    python -m support.script_kinds_page FILE

writes it, from the outcomes that the tests have left in a JSON file; ``make matrix`` does both.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from support.script_kinds import CELLS, IN_CI, KINDS, LAUNCHERS, ROOT

PAGE = ROOT / "docs" / "guide" / "scripts-and-launchers.md"
_BEGIN, _END = "<!-- table of scripts and launchers: make matrix -->\n", "<!-- end of the table -->\n"
_ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)


def table(results: dict[str, Any]) -> str:
    """Return the table, and the line about when and with what its cells were tested."""
    cells = results["cells"]
    rows = [f"| script | {' | '.join(LAUNCHERS.values())} |", "|---" * (len(LAUNCHERS) + 1) + "|"]
    for name, kind in KINDS.items():
        rows.append(f"| {kind.title} | {' | '.join(cells[name][launcher] for launcher in LAUNCHERS)} |")
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    tested = [
        f"All {len(CELLS)} cells were tested on {results['date']}, with {versions}.",
        f"CI tests {len(IN_CI)} of them, and fails if one differs from this table.",
    ]
    return "\n".join([*rows, "", *tested, ""])


def cells_on_page() -> dict[str, dict[str, str]]:
    """Return the cells of the table, by the names of their rows and columns."""
    block = PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]
    head, *lines = (row.split(" | ") for row in _ROW.findall(block))
    names = {kind.title: name for name, kind in KINDS.items()}
    assert head[1:] == list(LAUNCHERS.values())
    assert [line[0] for line in lines] == list(names)
    return {names[line[0]]: dict(zip(LAUNCHERS, line[1:], strict=True)) for line in lines}


def main(file: str) -> None:
    """Write the table."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n{table(json.loads(Path(file).read_text()))}\n{_END}{after}")


if __name__ == "__main__":
    main(sys.argv[1])
