"""Docstrings as Markdown: literal blocks, ruled tables and doctests become code blocks.

A comment after a field of a class becomes its docstring.
"""

import re
from typing import Any

import griffe

_RULE = re.compile(r"=+( +=+)+")


class PlainText(griffe.Extension):
    """Turns the plain-text forms that docstrings here use, and Markdown lacks, into what it has."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of `obj`, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(map(_block, obj.docstring.value.split("\n\n")))

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment after a field of a class as its docstring, if it has none."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class and attr.endlineno:
            line = attr.lines_collection[attr.filepath][attr.endlineno - 1]
            _, _, comment = line.partition("  # ")
            if comment and "noqa" not in comment:
                attr.docstring = griffe.Docstring(comment, parent=attr)


def _block(text: str) -> str:
    """Return one block of a docstring, what stands between two blank lines, as Markdown."""
    first = text.split("\n", 1)[0]
    if first.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if _RULE.fullmatch(first.strip()):
        return f"```text\n{text}\n```"
    if text.endswith("::"):
        return text[:-1].removesuffix(":") if text == "::" else text[:-1]
    return text
