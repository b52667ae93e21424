"""The status line is printed on a terminal only, at most as wide as the terminal."""

import io
import sys

import pytest

from samestep.base import console


class Terminal(io.StringIO):
    """A stream that is a terminal, or not."""

    def __init__(self, *, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_is_rewritten_on_a_terminal_only(monkeypatch, is_terminal):
    stream = Terminal(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "5")

    line = console.StatusLine()
    for text in ("one", "one", "a longer one", "", ""):
        line.show(text)

    shown = [] if not is_terminal else ["one", "a lo", ""]
    assert stream.getvalue() == "".join(f"\r{text}\x1b[K" for text in shown)


def test_closed_streams_are_opened_on_nothing(monkeypatch, capsys):
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, None)
    stdout = sys.stdout

    console.open_standard_streams()
    console.log("to no one")

    assert sys.stdin.fileno() == 0
    assert sys.stderr.fileno() == 2
    assert sys.stdout is stdout
    assert capsys.readouterr().out == ""
