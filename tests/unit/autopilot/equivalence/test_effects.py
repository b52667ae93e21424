"""A call that is computed for a comparison changes no file."""

import io
import os
import tempfile
from pathlib import Path

import pytest

from samestep.autopilot.equivalence.effects import WritesFileError, changing_no_files, watch_effects


@pytest.mark.parametrize("folder", [None, "/dev/shm"])
@pytest.mark.parametrize("opens", [lambda path: path.open("a"), lambda path: io.FileIO(path, "a")])
def test_a_comparison_that_changes_a_file_is_refused(folder, opens):
    watch_effects()
    with tempfile.TemporaryDirectory(dir=folder) as base:
        path = Path(base) / "log"
        with changing_no_files(), pytest.raises(WritesFileError):
            opens(path)
        assert not path.exists()
        opens(path).close()
        assert path.exists()


def test_a_comparison_may_read_files_and_write_to_devices():
    watch_effects()
    with changing_no_files():
        Path(os.devnull).write_text(Path(__file__).read_text())
