"""Writes the table of hooks in `docs/reference/hooks.md` from their declarations.

python docs/list_hooks.py            writes the table
python docs/list_hooks.py --check    exits with 1 if the table is out of date
"""

import sys
from itertools import groupby
from pathlib import Path

from samestep.hooks.declarations import ALL
from samestep.hooks.registry import Hook

PAGE = Path(__file__).parent / "reference" / "hooks.md"
_BEGIN, _END = "<!-- table of hooks: docs/list_hooks.py -->\n", "<!-- end of the table -->\n"


def table() -> str:
    """Return the table: attributes of one owner, feature and reason share a row."""
    rows = ["| attribute | feature | why | where it is missing |", "|---|---|---|---|"]

    def row(hook: Hook) -> tuple[str, str, str, bool]:
        return hook.owner, hook.feature, hook.reason, hook.optional

    for (owner, feature, reason, optional), hooks in groupby(ALL, row):
        names = ", ".join(f"`{hook.attribute}`" for hook in hooks)
        missing = "done without" if optional else "refused"
        rows.append(f"| `{owner.replace(':', '.')}`: {names} | {feature} | {reason} | {missing} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Write the table, or check it."""
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    new = f"{before}{_BEGIN}\n{table()}\n{_END}{after}"
    if "--check" in sys.argv:
        return 0 if new == text else 1
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
