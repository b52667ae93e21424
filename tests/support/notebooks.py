"""Executes the notebooks of `examples/notebooks` without Jupyter, and stores the output of their cells.

python -m support.notebooks            executes all, and stores their outputs
python -m support.notebooks --check    exits with 1 if a stored output is another one
"""

import contextlib
import io
import json
import sys
from pathlib import Path

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def executed(path):
    """Return the content of a notebook with the output of each cell, executed in one namespace."""
    notebook = json.loads(path.read_text())
    namespace = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)
        lines = printed.getvalue().splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    return notebook


def main():
    different = []
    for path in NOTEBOOKS:
        text = json.dumps(executed(path), indent=1, ensure_ascii=False) + "\n"
        if text != path.read_text():
            different.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text)
    print(f"other outputs: {', '.join(different) or 'none'}")
    return 1 if different and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
