"""An exception of samestep that ends a program is one line with the line of the program."""

import pytest

from samestep.base.errors import PeerLost, UsageError
from samestep.launch.job import Program
from samestep.launch.local.hosting import host


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError, 2), (PeerLost, 1)], ids=["wrong input", "lost peer"]
)
def test_an_error_of_samestep_is_one_line_with_the_line_of_the_program(tmp_path, error, code, monkeypatch):
    import sys

    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    script = tmp_path / "train.py"
    script.write_text(
        f"from samestep.base.errors import {error.__name__}\n\nraise {error.__name__}('found\\nthis')"
    )
    ending = host(Program(target=str(script)))

    assert ending.exit_code == code
    assert ending.error == error.__name__
    assert ending.traceback == f"samestep: error: found this ({script}:3)\n"
