"""Writes source files for tests that read them."""

from textwrap import dedent


def written(folder, text, name="train.py"):
    """Write a source file into a folder, and return its path."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
    return file
