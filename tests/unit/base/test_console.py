"""The status line is printed on a terminal only, at most as wide as the terminal."""

import io
import sys
import threading

import pytest

from samestep.base import console
from samestep.base.console import progress_bar


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


@pytest.mark.parametrize(
    ("shown", "quiet", "is_drawn"), [(True, "", True), (False, "", False), (True, "1", False)]
)
def test_a_bar_may_get_its_total_later_and_is_drawn_unless_hidden_or_quiet(
    shown, quiet, is_drawn, monkeypatch, capsys
):
    for name, value in {
        "FORCE_COLOR": "1",
        "TERM": "xterm",
        "COLUMNS": "80",
        "SAMESTEP_QUIET": quiet,
    }.items():
        monkeypatch.setenv(name, value)

    before = set(threading.enumerate())
    with progress_bar(None, shown=shown) as begin:
        begin("first")
        begin("second", 4)
    for thread in set(threading.enumerate()) - before:  # rich does not wait for the thread that draws
        thread.join(10)

    text = capsys.readouterr().err
    assert ("second" in text and "1/4" in text) is is_drawn
    assert bool(text) is is_drawn


def test_no_bar_is_drawn_without_a_terminal(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar(2, shown=True) as begin:
        begin("first")

    assert capsys.readouterr().err == ""
