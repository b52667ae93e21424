"""The progress bar is drawn on a terminal only."""

import threading

import pytest

from samestep.base.console import progress_bar


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
