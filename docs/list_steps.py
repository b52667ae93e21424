"""Writes the listings of `docs/guide/six-steps.md`: the fenced parts of the scripts in `examples/tutorial`.

python docs/list_steps.py            writes the listings
python docs/list_steps.py --check    exits with 1 if the page is out of date

A listing stands between ``<!-- listing: FILE FENCE -->`` and ``<!-- end of listing -->``. A fence begins with
a comment ``# >>> FENCE`` and ends with ``# <<<``; those whose names begin alike are one listing.
"""

import re
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guide" / "six-steps.md"
SCRIPTS = ROOT / "examples" / "tutorial"
_LISTING = re.compile(r"(<!-- listing: (\S+) (.+?) -->\n).*?(<!-- end of listing -->\n)", re.DOTALL)
_FENCE = re.compile(r"^ *# >>> (.+)\n((?:.*\n)*?) *# <<<\n", re.MULTILINE)


def listing(script: str, fence: str) -> str:
    """Return the parts of a script that the fence encloses, from its first to its last."""
    parts = [
        dedent(part).strip("\n")
        for name, part in _FENCE.findall((SCRIPTS / script).read_text())
        if name.startswith(fence)
    ]
    if not parts:
        message = f"{script} has no fence {fence!r}"
        raise ValueError(message)
    return "\n\n# ...\n\n".join(parts)


def page() -> str:
    """Return the page with the listings of the scripts as they are."""

    def renewed(found: re.Match[str]) -> str:
        begin, script, fence, end = found.groups()
        language = "bash" if script.endswith(".sh") else "python"
        return f"{begin}\n```{language}\n{listing(script, fence)}\n```\n\n{end}"

    return _LISTING.sub(renewed, PAGE.read_text())


def main() -> int:
    """Write the listings, or check them."""
    new = page()
    if "--check" in sys.argv:
        return 0 if new == PAGE.read_text() else 1
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
