"""The run folder's file system, really tried; and what is said where a step fails."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from samestep.studies.doctor import run_folder
from samestep.studies.doctor.run_folder import FolderTest, existing_folder, file_system_type, probe_folder

MOUNTS = """\
22 1 0:21 / / rw,relatime - ext4 /dev/vda rw
40 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
41 40 0:41 / /home/me/scratch\\040space rw - lustre 10.0.0.1@tcp:/fs rw,flock
42 22 0:42 / /homes rw - tmpfs tmpfs rw
"""


def texts(tried):
    return [(finding.text, finding.hurts) for finding in run_folder.judge(tried).findings]


def test_a_file_system_that_works_is_well_and_left_as_it_was(tmp_path):
    tried = probe_folder(tmp_path)
    assert tried.failed == {}
    assert set(tried.seconds) == {"write", "fsync", "rename", "lock"}
    assert list(tmp_path.iterdir()) == []


def test_the_nearest_folder_that_there_is_is_tried(tmp_path):
    assert existing_folder(tmp_path / "runs" / "one") == tmp_path
    (tmp_path / "file").write_text("")
    assert existing_folder(tmp_path / "file") == tmp_path
    assert existing_folder(Path("runs-that-are-not-there")) == Path.cwd()


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
    ("name", "module", "says"),
    [
        ("fsync", os, "fsync does not work in"),
        ("flock", fcntl, "Locks do not work in"),
    ],
)
def test_a_step_that_the_system_refuses_hurts(name, module, says, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module, name, refuse)
    ((text, hurts),) = [one for one in texts(probe_folder(tmp_path)) if one[1]]
    assert hurts
    assert says in text
    assert "No locks available" in text
    assert list(tmp_path.iterdir()) == []


def test_a_rename_that_the_system_refuses_hurts(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "replace", refuse)
    ((text, hurts),) = [one for one in texts(probe_folder(tmp_path)) if one[1]]
    assert hurts
    assert "rename does not work in" in text
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_everybody_gets_hurts(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    ((text, _),) = [one for one in texts(probe_folder(tmp_path)) if one[1]]
    assert "lock" in text


def test_a_folder_that_takes_no_files_hurts(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    ((text, hurts),) = [one for one in texts(probe_folder(tmp_path)) if one[1]]
    assert hurts
    assert "Nothing can be written" in text
    assert "Permission denied" in text


def test_a_slow_a_full_and_a_fleeting_file_system_are_told():
    (slow, full, fleeting) = texts(FolderTest(folder="/w", kind="tmpfs", free=2**20, seconds={"fsync": 4.2}))
    assert "fsync 4.2 s" in slow[0]
    assert "1 MiB left" in full[0]
    assert fleeting[1] is False


def test_a_folder_that_takes_no_files_is_not_called_full_as_well():
    ((text, _),) = texts(FolderTest(folder="/proc", kind="proc", free=0, failed={"write": "No such file"}))
    assert "Nothing can be written" in text
