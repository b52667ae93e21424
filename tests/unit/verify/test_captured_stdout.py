"""The prints of a script are read at once, whatever it has put in the place of stdout."""

import io
import sys
from contextlib import redirect_stdout

import pytest

from samestep.verify.probed_run import _CapturedStdout


@pytest.mark.parametrize(
    "replacement",
    [
        lambda: sys.stdout,
        lambda: io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8"),
        lambda: io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8"),
    ],
    ids=["none", "of the buffer", "of the detached buffer"],
)
def test_prints_are_read_at_once(tmp_path, replacement):
    captured = _CapturedStdout(tmp_path / "stdout")
    with redirect_stdout(captured.stream):
        sys.stdout = stream = replacement()
        print("loss 0.5")
        assert captured.text() == "loss 0.5\n"
        stream.close()
        assert captured.text() == "loss 0.5\n"
    captured._reader.close()  # a worker's closes when it exits
