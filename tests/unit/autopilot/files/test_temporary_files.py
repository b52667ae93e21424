"""Temporary files of a script with an overlay are accessible to the programs that it starts."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.overlay_files import Overlay


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return where temporary files go during this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def overlay(tmp_path, temporary):
    (tmp_path / "shadow").mkdir()
    return Overlay(tmp_path / "shadow")


def lines_of(path):
    """Return what another program reads."""
    code = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=path.parent
    ).stdout


def test_a_started_program_finds_temporary_files(overlay, temporary):
    with redirected(overlay), tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "deep" / "source.c"
        source.parent.mkdir()
        source.write_text("int main")
        assert lines_of(source) == "int main"
        assert os.listdir(folder) == ["deep"]
        source.rename(source.with_name("other.c"))
        assert lines_of(source.with_name("other.c")) == "int main"
    assert not list(temporary.iterdir())

    with redirected(overlay), tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write("int main")
        file.flush()
        assert lines_of(Path(file.name)) == "int main"
    assert not list(temporary.iterdir())


def test_other_ranks_share_a_temporary_folder(overlay, tmp_path):
    with redirected(overlay):
        folder = Path(tempfile.mkdtemp())
        (folder / "rank0").write_text("0")
    with redirected(Overlay(tmp_path / "shadow")):
        (folder / "rank1").write_text("1")
        assert sorted(os.listdir(folder)) == ["rank0", "rank1"]
    assert lines_of(folder / "rank1") == "1"


def test_other_and_moved_files_stay_in_the_overlay(overlay, temporary, tmp_path):
    with redirected(overlay):
        made = Path(tempfile.mkdtemp(dir=tmp_path))
        with tempfile.NamedTemporaryFile("w", dir=tmp_path, delete=False) as file:
            file.write("weights")
        os.replace(file.name, tmp_path / "model.pt")
        number, name = tempfile.mkstemp()
        os.close(number)
        Path(name).write_text("log")
        Path(name).replace(tmp_path / "log.txt")
        assert made.is_dir()
        assert [(tmp_path / one).read_text() for one in ("model.pt", "log.txt")] == ["weights", "log"]
        with tempfile.NamedTemporaryFile("w", dir=tmp_path) as file:
            assert Path(file.name).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shadow", "tmp"]
    assert not list(temporary.iterdir())
