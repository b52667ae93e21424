"""Builds a self-contained HTML page from sections and tables, and tables of text."""

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from importlib.resources import files

from samestep.report.drawing import STYLE

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


def table(rows: Iterable[Row], *, head: Row = (), right: Collection[int] = ()) -> str:
    """Return a table of texts.

    Args:
        rows: cells of each row; numbers are right-aligned.
        head: names of the columns.
        right: columns whose texts are right-aligned as well.
    """
    top = f"<thead>{_row(head, 'th', right)}</thead>" if head else ""
    body = "".join(_row(row, "td", right) for row in rows)
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
    """Return a table as lines, with right-aligned numeric columns."""
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    right = numeric_columns(rows)

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.rjust(width) if k in right else cell.ljust(width) for k, (cell, width) in cells)

    return [line(row).rstrip() for row in (head, *rows)]


def _row(row: Row, kind: str, right: Collection[int]) -> str:
    return f"<tr>{''.join(_cell(one, kind, is_right=k in right) for k, one in enumerate(row))}</tr>"


def _cell(value: object, kind: str, *, is_right: bool) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:,}" if isinstance(value, int) and number else f"{value:.4g}" if number else str(value)
    scope = ' scope="col"' if kind == "th" else ""
    return f"<{kind}{scope}{' class=n' if number or is_right else ''}>{unbroken_flags(escape(text))}</{kind}>"


def _sheet(name: str) -> str:
    return (files("samestep.report") / name).read_text(encoding="utf-8")
