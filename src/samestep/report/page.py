"""One self-contained page: its frame, its style, its tables."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

Row = Sequence[object]


def page(title: str, body: Iterable[str], *, foot: str) -> str:
    """Return a whole HTML page; `body` is HTML, `title` and `foot` are text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # No favicon of its own would make a browser ask for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<footer>{escape(foot)}</footer>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section under a heading."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def table(rows: Iterable[Row], *, head: Row = ()) -> str:
    """Return a table of texts; a number stands at the right of its cell."""
    top = f"<thead><tr>{''.join(_cell(text, 'th') for text in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(_cell(value, 'td') for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def bullets(texts: Sequence[str], kind: str) -> str:
    """Return a list of sentences, or nothing where there are none."""
    if not texts:
        return ""
    return f'<ul class="{kind}">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>'


def _cell(value: object, kind: str) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:,}" if isinstance(value, int) and number else f"{value:.4g}" if number else str(value)
    return f"<{kind}{' class=n' if number else ''}>{escape(text)}</{kind}>"


def _style() -> str:
    return (files("samestep.report") / "style.css").read_text(encoding="utf-8")
