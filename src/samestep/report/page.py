"""Builds a self-contained HTML page, and writes pages, and charts as files of their own."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from samestep.base.errors import UsageError
from samestep.base.folders import refuse_unwritable, temporary_directory
from samestep.base.record import write_whole
from samestep.base.units import counted
from samestep.report.drawing import STYLE, Chart

Row = Sequence[object]

_FLAG = re.compile(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*")  # a browser can break a line at each of its hyphens


def page(title: str, body: Iterable[str], *, foot: str, styles: Sequence[str] = ()) -> str:
    """Return an HTML page.

    Args:
        title: title as text.
        body: elements as HTML.
        foot: footer as text.
        styles: names of style sheets besides the common one.
    """
    sheets = "".join(map(_sheet, (STYLE, "style.css", *styles)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty favicon keeps browsers from requesting one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{sheets}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<footer>{escape(foot)}</footer>\n</body>\n</html>\n"
    )


def title_of(name: str) -> str:
    """Return a name, such as a path, as the title of a page; a narrow window breaks it at ``/`` and ``_``.

    >>> title_of("a/b_c")
    '<h1>a/<wbr>b_<wbr>c</h1>'
    """
    breakable = escape(name).replace("/", "/<wbr>").replace("_", "_<wbr>")
    return f"<h1>{breakable}</h1>"


def unbroken_flags(text: str) -> str:
    """Return HTML whose flags stay on one line.

    >>> unbroken_flags("give -n, not --dry-run")
    'give <span class="flag">-n</span>, not <span class="flag">--dry-run</span>'
    """
    return _FLAG.sub(r'<span class="flag">\g<0></span>', text)


def section(title: str, *parts: str) -> str:
    """Return a section with a heading."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def grid(charts: Iterable[Chart]) -> str:
    """Return charts side by side."""
    return f'<div class="grid2">{"".join(chart.render() for chart in charts)}</div>'


def table(rows: Iterable[Row], *, head: Sequence[str] = ()) -> str:
    """Return a table; below a `head`, columns of numbers are right-aligned with their names."""
    texts = [list(map(_cell_text, row)) for row in rows]
    right = numeric_columns(texts) if head else ()
    top = f"<thead>{_row(head, 'th', right)}</thead>" if head else ""
    body = "".join(_row(row, "td", right) for row in texts)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def bullets(texts: Sequence[str], kind: str) -> str:
    """Return a list of sentences with the CSS class `kind`; empty for none."""
    if not texts:
        return ""
    return f'<ul class="{kind}">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>'


def numeric_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns whose cells are numbers, with or without a unit, or empty, or a hyphen."""
    columns = range(len(rows[0])) if rows else ()
    return [k for k in columns if all(row[k][:1].isdigit() or row[k] in ("", "-") for row in rows)]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines, with right-aligned numeric columns.

    A name in `head` can have several lines.
    """
    names = [name.split("\n") for name in head]
    height = max(map(len, names), default=1)
    heads = list(zip(*([""] * (height - len(lines)) + lines for lines in names), strict=True))
    widths = [max(len(row[k]) for row in (*heads, *rows)) for k in range(len(head))]
    right = numeric_columns(rows)

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.rjust(width) if k in right else cell.ljust(width) for k, (cell, width) in cells)

    return [line(row).rstrip() for row in (*heads, *rows)]


def _row(row: Sequence[str], kind: str, right: Collection[int]) -> str:
    return f"<tr>{''.join(_cell(cell, kind, is_right=k in right) for k, cell in enumerate(row))}</tr>"


def _cell(text: str, kind: str, *, is_right: bool) -> str:
    scope = ' scope="col"' if kind == "th" else ""
    return f"<{kind}{scope}{' class=n' if is_right else ''}>{unbroken_flags(escape(text))}</{kind}>"


def _cell_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _sheet(name: str) -> str:
    return (files("samestep.report") / name).read_text(encoding="utf-8")


_PPI = 216  # pixels per inch of a PNG: three for each unit of a chart, which is a point in a PDF

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HEADLESS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--no-pdf-header-footer"),
)
"""Flags for a page of our own, without a display; a sandbox does not start as root or in containers."""


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path` atomically, and return the path.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        if path.is_dir():
            raise UsageError(
                f"cannot write {path}: it is a folder. Name a file, such as --page {path / 'report.html'}."
            )
        write_whole(path, [text])
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Choose another file.") from None
    return path


def refuse_without_browser(pdf: Path | None) -> None:
    """Refuse ``--pdf`` without Chromium, before time is spent on the page.

    Raises:
        UsageError: there is no browser, or the file cannot be written.
    """
    if pdf is None:
        return
    if browser() is None:
        raise UsageError(
            f"--pdf {pdf} needs Chromium, and none of {', '.join(_BROWSERS)} is on the PATH. Install one, or "
            "print the page in a browser."
        )
    if pdf.is_dir():
        raise UsageError(f"--pdf {pdf} is a folder; give a file, such as {pdf / 'report.pdf'}.")
    refuse_unwritable("--pdf", pdf.parent)


def write_pdf(page: Path, pdf: Path) -> str:
    """Print a page to a PDF by Chromium, and return a line about the file.

    Raises:
        UsageError: the browser fails.
    """
    pdf.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=temporary_directory()) as profile:
        words = [str(browser()), *HEADLESS, f"--user-data-dir={profile}", f"--print-to-pdf={pdf.absolute()}"]
        try:
            ended = subprocess.run(
                [*words, page.absolute().as_uri()], capture_output=True, text=True, check=False, timeout=120
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"Chromium did not print {page} within 120 s; open the page and print it."
            ) from None
    if ended.returncode or not pdf.is_file():
        reason = " ".join(ended.stderr.split()[-30:])
        raise UsageError(f"Chromium cannot print {page} to {pdf}: {reason or 'it wrote no file'}.")
    return f"pdf: {pdf}"


def browser() -> str | None:
    """Return the path of Chromium or Chrome; None if neither is installed."""
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def write_figures(charts: Iterable[Chart], folder: Path) -> str:
    """Write each chart that has data as SVG, PDF and PNG, and return a line about the files.

    Without the extra ``plots``, only SVG is written, and the line has the command that installs it.

    Raises:
        UsageError: a file cannot be written.
    """
    documents = {chart.stem(): document for chart in charts if (document := chart.svg())}
    library = _converter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            (folder / f"{name}.svg").write_text(document, encoding="utf-8")
            if library:
                (folder / f"{name}.pdf").write_bytes(library.svg_to_pdf(document))
                (folder / f"{name}.png").write_bytes(library.svg_to_png(document, ppi=_PPI))
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or folder}: {error.strerror}. Choose another --figures."
        ) from None
    kinds = "as SVG, PDF and PNG" if library else "as SVG; for PDF and PNG: pip install 'samestep[plots]'"
    return f"figures: {folder}, {counted(len(documents), 'chart')} {kinds}"


def _converter() -> Any:
    """Return the library that converts SVG; None if it is not installed."""
    try:
        import vl_convert
    except ImportError:
        return None
    return vl_convert
