"""Temporary folders are deleted when their last owner has ended; nothing else is deleted."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace

import pytest

from samestep.base import folders
from samestep.base.documents import read_as
from samestep.base.errors import Error, UsageError
from samestep.base.folders import (
    DESCENDANTS,
    make_folder,
    orphans,
    owned_folder,
    places,
    remove_dead,
    remove_folder,
    use_folder,
)
from samestep.base.process_identity import Owner


def names(folder):
    return [path.name for path in folder.iterdir()]


def record(folder):
    return folder / f".samestep-owner.{os.getpid()}"


def of_another(folder, **changes):
    """Change the owner record of a folder, so that another process owns it; return the folder."""
    path = record(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def of_the_dead(parent):
    return of_another(make_folder(parent), started="1")


def test_a_folder_is_deleted_after_its_block_but_not_by_a_forked_child(tmp_path):
    with owned_folder(tmp_path) as folder:
        (folder / "file").touch()
        child = os.fork()
        if child == 0:
            try:
                with owned_folder(tmp_path):
                    raise SystemExit
            except SystemExit:
                os._exit(0)
        os.waitpid(child, 0)
        assert (folder / "file").exists()
        assert names(tmp_path) == [folder.name]
    assert names(tmp_path) == []


def test_a_forked_child_that_exits_its_parents_block_deletes_nothing(tmp_path):
    child = 0
    try:
        with owned_folder(tmp_path) as folder:
            child = os.fork()
            if child == 0:
                raise SystemExit
            os.waitpid(child, 0)
            assert folder.exists()
    except SystemExit:
        os._exit(0)
    assert not folder.exists()


def test_folders_of_running_processes_are_kept_and_those_of_ended_ones_deleted(tmp_path):
    alive, dead = make_folder(tmp_path), of_the_dead(tmp_path)
    (dead / "deep").mkdir()
    (dead / "deep" / "file").write_bytes(b"1")
    (dead / "deep").chmod(0o500)
    assert remove_dead([tmp_path]) == [dead]
    assert names(tmp_path) == [alive.name]


def test_a_folder_is_kept_while_one_of_its_owners_runs(tmp_path):
    folder = of_the_dead(tmp_path)
    record(folder).rename(folder / ".samestep-owner.1")
    use_folder(folder)
    assert remove_dead([tmp_path]) == []
    of_another(folder, started="1")
    assert remove_dead([tmp_path]) == [folder]


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({"boot": "another"}, True),
        ({"host": "elsewhere"}, False),
        ({"numbering": "pid:[1]", "started": "1"}, False),
        ({"pid": 2**22 + 1}, True),
        ({"pid": "1"}, False),
        ({"is": "another format"}, False),
    ],
)
def test_a_folder_is_deleted_only_if_its_owner_has_certainly_ended(tmp_path, changes, goes):
    folder = of_another(make_folder(tmp_path), **changes)
    assert (remove_dead([tmp_path]) == [folder]) is goes
    assert folder.exists() is not goes


def test_folders_files_and_links_without_a_valid_owner_record_are_kept(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").touch()
    dead = of_the_dead(tmp_path)
    record(dead).rename(target / record(dead).name)  # the record of a dead process, in a user's folder
    dead.rmdir()
    (tmp_path / "samestep-1-00000000").symlink_to(target)
    (tmp_path / "samestep-2-00000000").mkdir()
    (tmp_path / "samestep-2-00000000" / "file").touch()
    (tmp_path / "samestep-3-00000000").mkdir()
    (tmp_path / "samestep-3-00000000" / ".samestep-owner.3").symlink_to(target / record(dead).name)
    (tmp_path / "samestep-4-00000000").touch()
    (tmp_path / "samestep-mine").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert remove_dead([tmp_path]) == []
    assert sorted(tmp_path.rglob("*")) == before
    for folder in (target, tmp_path / "samestep-mine"):
        remove_folder(folder)
        assert folder.exists()


def test_links_in_an_orphaned_folder_are_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "mine").chmod(0o500)
    dead = of_the_dead(tmp_path)
    (dead / "link").symlink_to(tmp_path / "mine")
    assert remove_dead([tmp_path]) == [dead]
    assert (tmp_path / "mine" / "file").exists()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o500


def test_the_empty_folder_of_an_ended_process_is_deleted(tmp_path):
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    (tmp_path / f"samestep-{ended.pid}-00000000").mkdir()
    assert len(remove_dead([tmp_path])) == 1


def test_segments_of_a_zombie_are_deleted_with_the_folder_and_those_of_a_running_process_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(folders, "_SHARED_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(folders, "memory_is_numbered_apart", lambda: False)
    folder = of_the_dead(tmp_path)
    zombie = os.fork()
    if zombie == 0:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    (folder / DESCENDANTS).write_text(f"{zombie}\n{os.getpid()}\n")
    (tmp_path / "memory").mkdir()
    for pid in (zombie, os.getpid()):
        (tmp_path / "memory" / f"torch_{pid}_1_0").touch()

    assert remove_dead([tmp_path]) == [folder]
    os.waitpid(zombie, 0)

    assert names(tmp_path / "memory") == [f"torch_{os.getpid()}_1_0"]


def test_a_parent_that_cannot_be_written_to_is_named_in_the_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Error, match=str(tmp_path / "file")):
        make_folder(tmp_path / "file")


def test_a_process_is_distinguished_from_an_earlier_one_of_the_same_pid():
    here = Owner.here()
    assert here.life() == "alive"
    assert replace(here, started="1").life() == "dead"
    assert read_as(Owner, asdict(here), "process") == here
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie
    assert replace(here, pid=child).life() == "dead"
    os.waitpid(child, 0)


def test_folders_of_the_dead_are_removed_and_those_of_other_hosts_are_kept(tmp_path):
    dead = of_the_dead(tmp_path)
    foreign = of_another(make_folder(tmp_path), host="elsewhere")
    make_folder(tmp_path)
    assert remove_dead([tmp_path]) == [dead]
    assert {one.path for one in orphans([tmp_path])} == {foreign}
    assert not dead.exists()


def test_a_missing_temporary_directory_is_wrong_input_and_hides_no_other_folder(monkeypatch, tmp_path):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match="TMPDIR"):
        make_folder()
    assert places() == [tmp_path]


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Return a folder for /dev/shm that has a segment of a worker and one of another process."""
    monkeypatch.setattr(folders, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(folders, "memory_is_numbered_apart", lambda: False)
    for name in ("torch_12_1_0", "torch_13_1_0"):
        (tmp_path / name).write_bytes(b"12345")
    return tmp_path


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_ended_workers_memory_is_freed(memory):
    folders.free_segments({12}, since_s=time.time() - 60)
    assert left(memory) == ["torch_13_1_0"]


def test_memory_that_is_older_than_the_workers_is_kept(memory):
    folders.free_segments({12, 13}, since_s=time.time() + 60)
    assert left(memory) == ["torch_12_1_0", "torch_13_1_0"]


def test_memory_of_another_user_is_kept(memory, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: -1)
    folders.free_segments({12, 13}, since_s=time.time() - 60)
    assert left(memory) == ["torch_12_1_0", "torch_13_1_0"]


def test_in_a_container_that_shares_the_hosts_memory_nothing_is_freed(memory, monkeypatch):
    monkeypatch.setattr(folders, "memory_is_numbered_apart", lambda: True)
    folders.free_segments({12, 13}, since_s=time.time() - 60)
    assert left(memory) == ["torch_12_1_0", "torch_13_1_0"]
