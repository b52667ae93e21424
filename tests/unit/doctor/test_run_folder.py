"""The file system of the run folder is tested, and each failed operation is reported."""

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from samestep.doctor import run_folder
from samestep.doctor.run_folder import FolderTest, existing_folder, file_system_type, probe_folder

MOUNTS = """\
22 1 0:21 / / rw,relatime - ext4 /dev/vda rw
40 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
41 40 0:41 / /home/me/scratch\\040space rw - lustre 10.0.0.1@tcp:/fs rw,flock
42 22 0:42 / /homes rw - tmpfs tmpfs rw
"""


def texts(tried):
    return [(finding.text, finding.hurts) for finding in run_folder.judge(tried).findings]


def test_a_working_file_system_has_no_failure_and_is_left_unchanged(tmp_path):
    tried = probe_folder(tmp_path)
    assert tried.failed == {}
    assert set(tried.seconds) == {"write", "fsync", "rename", "lock"}
    assert list(tmp_path.iterdir()) == []


def test_the_nearest_existing_folder_is_tested(tmp_path):
    assert existing_folder(tmp_path / "runs" / "one") == tmp_path
    (tmp_path / "file").write_text("")
    assert existing_folder(tmp_path / "file") == tmp_path
    assert existing_folder(Path("runs-that-are-not-there")) == Path.cwd()


def test_a_file_in_place_of_the_run_folder_is_a_problem(tmp_path):
    """Only this catches a folder that is said to work, and that a training then refuses."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    for name, problems in (("file", 1), ("file/run", 1), ("link", 1), ("new/run", 0)):
        context = SimpleNamespace(run_folder=tmp_path / name, root=Path("/"))
        assert sum(finding.hurts for finding in run_folder.check(context).findings) == problems, name


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/data", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/scratch space/runs", "lustre"),
        ("/homes/me", "tmpfs"),
        ("/homestead", "ext4"),
    ],
)
def test_the_kind_is_that_of_the_innermost_mount(place, kind):
    assert file_system_type(Path(place), MOUNTS) == kind


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("fsync", os, "fsync does not work in"),
        ("flock", fcntl, "Locks do not work in"),
        ("replace", Path, "rename does not work in"),
    ],
)
def test_a_failed_flush_lock_or_rename_is_a_problem(name, module, message, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module, name, refuse)
    ((text, hurts),) = [finding for finding in texts(probe_folder(tmp_path)) if finding[1]]
    assert hurts
    assert message in text
    assert "No locks available" in text
    assert list(tmp_path.iterdir()) == []


def test_a_lock_without_effect_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    ((text, _),) = [finding for finding in texts(probe_folder(tmp_path)) if finding[1]]
    assert "lock" in text


def test_a_folder_without_write_access_is_a_problem(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    ((text, hurts),) = [finding for finding in texts(probe_folder(tmp_path)) if finding[1]]
    assert hurts
    assert "Nothing can be written" in text
    assert "Permission denied" in text


def test_slow_full_and_volatile_file_systems_are_reported():
    (slow, full, volatile) = texts(FolderTest(folder="/w", kind="tmpfs", free=2**20, seconds={"fsync": 4.2}))
    assert "fsync 4.2 s" in slow[0]
    assert "1 MiB left" in full[0]
    assert volatile[1] is False


def test_a_folder_without_write_access_is_not_reported_as_full():
    ((text, _),) = texts(FolderTest(folder="/proc", kind="proc", free=0, failed={"write": "No such file"}))
    assert "Nothing can be written" in text
