"""Draws the folders of `src/samestep` and their imports, for `docs/design.md`.

    python docs/draw_rooms.py            writes docs/images/rooms.svg
    python docs/draw_rooms.py --check    exits with 1 if that file is out of date

A row is a folder, from the top of the code down. A square marks a folder that it imports. No square is left
of the diagonal: imports point down.
"""

import ast
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "samestep"
PICTURE = Path(__file__).parent / "images" / "rooms.svg"
ROOMS = (
    *("cli", "verify", "scaling", "bench", "doctor", "report", "run", "training", "autopilot", "observe"),
    *("parallel", "submit", "launch", "ranks", "hooks", "launchers", "base"),
)
_ROW, _CELL, _NAME, _PARTS, _TOP = 30, 26, 92, 372, 74


def parts(room: str) -> list[str]:
    """Return the folders in a room."""
    return sorted(path.parent.name for path in (SOURCE / room).glob("*/__init__.py"))


def imported(room: str) -> set[str]:
    """Return the rooms that the modules of `room` import, at their top or in a function."""
    found = set()
    for path in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("samestep"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            found |= {name.split(".")[1] for name in names if name.startswith("samestep.")}
    return found & set(ROOMS) - {room}


def svg() -> str:
    """Return the picture."""
    width = _NAME + _PARTS + _CELL * len(ROOMS) + 20
    height = _TOP + _ROW * len(ROOMS) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<style>text { font: 12px sans-serif }</style>",
        "<title>The folders of samestep and their imports</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, room in enumerate(ROOMS):
        x, y = _NAME + _PARTS + _CELL * column + 17, _TOP - 8
        lines.append(f'<text x="{x}" y="{y}" transform="rotate(-60 {x} {y})" fill="#333">{room}</text>')
    for row, room in enumerate(ROOMS):
        y = _TOP + _ROW * row
        used = imported(room)
        lines.append(f'<rect x="4" y="{y}" width="{width - 8}" height="{_ROW - 4}" rx="4" fill="#eef1f6"/>')
        lines.append(f'<text x="12" y="{y + 17}" font-weight="bold" fill="#111">{room}</text>')
        lines.append(f'<text x="{_NAME}" y="{y + 17}" fill="#555">{escape(", ".join(parts(room)))}</text>')
        for column, other in enumerate(ROOMS):
            x = _NAME + _PARTS + _CELL * column
            if row == column:
                lines.append(f'<circle cx="{x + 13}" cy="{y + 13}" r="3" fill="#9aa3b2"/>')
            elif other in used:
                lines.append(f'<rect x="{x + 6}" y="{y + 6}" width="14" height="14" rx="2" fill="#3d5a98"/>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Write the picture, or check it."""
    if "--check" in sys.argv:
        return 0 if PICTURE.read_text() == svg() else 1
    PICTURE.write_text(svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
