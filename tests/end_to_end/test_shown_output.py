"""Outputs that the README and the first pages show are those of the commands, up to machines' figures."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from support.forked_commands import samestep, scale

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/start.md", "docs/quickstart.md")
QUICK = {"scale": ("--steps=2", "--warm-up=1", "--repeats=1", "--oversubscribe")}
"""Options that shorten a command, and change figures only; the last value of an option counts."""
_HASH = re.compile("[0-9a-f]{64}")
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?"


def blocks(page):
    """Return the commands that a page shows and the lines below each."""
    text = re.sub(r"(?m)^```.*$", "", (ROOT / page).read_text())
    shown = re.findall(r"(?m)^(?:    )?\$ (samestep .+)\n((?:(?:    )?(?!\s*\$).+\n)*)", text)
    return {words: [line.removeprefix("    ") for line in lines.splitlines()] for words, lines in shown}


def pattern(line):
    """Return an expression for a shown line: any number for a number, anything for three dots."""
    parts = re.split(rf"(\.\.\.|{_NUMBER}| +)", line.strip())
    known = {"...": ".*"}
    return "".join(
        known.get(part)
        or (_NUMBER if re.fullmatch(_NUMBER, part) else r"\s+" if part.isspace() else re.escape(part))
        for part in parts
        if part
    )


def missing(shown, printed):
    """Return the first shown line that the printed lines lack, in order."""
    rest = iter(printed)
    for line in shown:
        if line != "..." and not any(re.fullmatch(pattern(line), one.strip()) for one in rest):
            return line
    return None


COMMANDS = {
    words: lines
    for page in PAGES
    for words, lines in blocks(page).items()
    if lines and "--exact" not in words
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_shown_output_is_printed(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    _, verb, *rest = shlex.split(words)
    command = scale if verb == "scale" else samestep

    ended = command(*(() if verb == "scale" else (verb,)), *rest, *QUICK.get(verb, ()))

    assert ended.code == 0, ended.err
    shown = COMMANDS[words]
    if verb == "scale":  # whether there are intervals, and which baseline is faster, differs by run
        words = [line.split() for line in shown if line != "..."]
        shown = [" ".join([*line[:3], "..."] if len(line) > 3 else line) for line in words]
    printed = ended.out.splitlines() if verb in ("verify", "scale") else (ended.err + ended.out).splitlines()
    assert missing(shown, printed) is None, ended.out + ended.err


def test_a_line_that_is_not_printed_is_found():
    assert missing(["a 1.5", "...", "b"], ["a 2", "c", "b"]) is None
    assert missing(["a 1.5", "b"], ["b", "a 2"]) == "b"
    assert missing(["same: 3 steps"], ["different: 3 steps"]) == "same: 3 steps"


def test_exact_weights_are_equal_on_one_and_three_workers_as_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [words for words in blocks("README.md") if "--exact" in words]
    hashes = [set(_HASH.findall(samestep(*shlex.split(words)[1:]).out)) for words in commands]

    assert [words.split("-n ")[1][0] for words in commands] == ["1", "3"]
    assert [len(one) for one in hashes] == [1, 1]
    assert hashes[0] == hashes[1]
    shown = _HASH.findall((ROOT / "README.md").read_text())
    assert len(shown) == 2
    assert len(set(shown)) == 1


def test_the_readme_fits_its_length():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
