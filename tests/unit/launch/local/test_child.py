"""Exceptions of finalizers in the process of a worker are reported."""

import sys

import pytest

from samestep.launch.local.child import report_unless_interrupted


class Finalized:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


@pytest.mark.parametrize(("error", "is_reported"), [(KeyboardInterrupt(), False), (ValueError("x"), True)])
def test_an_error_of_a_finalizer_is_reported_unless_it_is_ctrl_c(monkeypatch, capsys, error, is_reported):
    monkeypatch.setattr(sys, "unraisablehook", report_unless_interrupted)
    Finalized(error)

    assert ("Finalized" in capsys.readouterr().err) is is_reported
