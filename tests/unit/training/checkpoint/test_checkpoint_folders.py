"""Folders that a killed writer left are recognized by name, and the next writer restores or deletes them."""

import errno
import hashlib
import os
import re
from pathlib import Path

import pytest
import torch

from samestep.base.record import IDENTITY_FILE, hidden_name
from samestep.training.checkpoint.checkpoint_folders import (
    OwnedFolders,
    delete,
    make,
    restore,
    tidy,
    whole_or_absent,
)
from samestep.training.checkpoint.save import SealedFile
from samestep.training.checkpoint.snapshot import MARK, STATE


def folder_with(path, text):
    """Create a folder of the run that writes to `path`'s parent."""
    own = OwnedFolders.claim(path.parent)
    draft = own.begin("new")
    (draft / STATE).write_text(text)
    draft.rename(path)


def unfinished(parent, kind, name):
    """Return the path of a folder that this run is writing, replacing or deleting."""
    return parent / hidden_name(kind, name, OwnedFolders.claim(parent).identity)


class FullDisk:
    """A stream that raises an error after some bytes."""

    left = 500

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = close = lambda self: None


def names(parent):
    """Return the names in a folder, without the identity of the run that writes to it."""
    return sorted(path.name for path in parent.iterdir() if path.name != IDENTITY_FILE)


def test_a_sealed_file_records_its_size_and_checksum(tmp_path):
    data = bytes(range(256)) * 10_000  # more than a piece

    with SealedFile(tmp_path / "f") as file:
        assert file.write(data) == len(data)
        assert file.write(memoryview(data)[::1][:7]) == 7

    written = (tmp_path / "f").read_bytes()
    assert written == data + data[:7]
    assert (file.seal.bytes, file.seal.sha256) == (len(written), hashlib.sha256(written).hexdigest())


def test_a_full_disk_is_reported_although_torch_save_raises_another_error(tmp_path):
    file = SealedFile(tmp_path / "f")
    file._stream.close()
    file._stream = FullDisk()

    with pytest.raises(OSError, match="No space left"), file:
        torch.save({"w": torch.zeros(10)}, file)


def test_a_file_system_that_cannot_flush_folders_is_accepted(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    with whole_or_absent(tmp_path / "c"):
        pass

    assert names(tmp_path) == ["c"]


def test_a_draft_is_renamed_at_the_end_of_the_block(tmp_path):
    with whole_or_absent(tmp_path / "deep" / "c") as draft:
        (draft / STATE).write_text("new")
        assert not (tmp_path / "deep" / "c").exists()

    assert names(tmp_path / "deep") == ["c"]
    assert (tmp_path / "deep" / "c" / STATE).read_text() == "new"


def test_a_failure_while_writing_leaves_neither_a_folder_nor_a_draft(tmp_path):
    with pytest.raises(FileNotFoundError), whole_or_absent(tmp_path / "c") as draft:
        (draft / "half").write_text((draft / "missing").read_text())

    assert names(tmp_path) == []


def test_a_failure_keeps_the_folder_that_was_to_be_replaced(tmp_path):
    folder_with(tmp_path / "c", "old")

    with pytest.raises(KeyError), whole_or_absent(tmp_path / "c"):
        raise KeyError

    assert (tmp_path / "c" / STATE).read_text() == "old"
    assert names(tmp_path) == ["c"]


def test_a_folder_is_replaced_and_the_old_one_deleted(tmp_path):
    folder_with(tmp_path / "c", "old")

    with whole_or_absent(tmp_path / "c") as draft:
        (draft / STATE).write_text("new")
        assert (tmp_path / "c" / STATE).read_text() == "old"

    assert (tmp_path / "c" / STATE).read_text() == "new"
    assert names(tmp_path) == ["c"]


def test_a_reader_that_restores_a_folder_meanwhile_does_not_undo_its_replacement(tmp_path, monkeypatch):
    """Only this catches a training that ends because another process looks for checkpoints."""
    folder_with(tmp_path / "c", "old")
    rename, renamed = OwnedFolders.rename, []

    def rename_late(self, source, target):
        renamed.append(target)
        if target == "c" and renamed.count("c") == 1:
            restore(tmp_path)  # as a reader does; it renames, too
        rename(self, source, target)

    monkeypatch.setattr(OwnedFolders, "rename", rename_late)
    with whole_or_absent(tmp_path / "c") as draft:
        (draft / STATE).write_text("new")
    assert (tmp_path / "c" / STATE).read_text() == "new"
    assert names(tmp_path) == ["c"]


class Recorder:
    """Records the order of file system calls, with paths relative to `folder`."""

    def __init__(self, folder, monkeypatch):
        self.seen = []
        for name, path_of in (
            ("fsync", lambda handle: Path(f"/proc/self/fd/{handle}").readlink()),
            ("rename", lambda path, target, **_: f"{path} -> {target}"),
            ("unlink", lambda path, **_: path),
            ("rmdir", lambda path, **_: path),
        ):
            monkeypatch.setattr(os, name, self.recording(folder, name, getattr(os, name), path_of))

    def recording(self, folder, name, function, path_of):
        def recorded(*arguments, **options):
            text = re.sub(r"\.samestep-(\w+)-[0-9a-f-]{49}", r".\1", str(path_of(*arguments, **options)))
            result = function(*arguments, **options)  # what fails has not happened
            self.seen.append(f"{name} {text}".replace(f"{folder}/", ""))
            return result

        return recorded


def test_files_are_flushed_before_the_rename_and_the_old_folder_is_deleted_after_it(tmp_path, monkeypatch):
    folder_with(tmp_path / "c", "old")
    recorder = Recorder(tmp_path.parent, monkeypatch)

    with whole_or_absent(tmp_path / "c") as draft:
        for name in ("model.safetensors", STATE):
            with SealedFile(draft / name) as file:
                file.write(b"new")

    here = tmp_path.name
    assert recorder.seen == [
        f"fsync {here}/.draft.c/{MARK}",
        f"fsync {here}/.draft.c/model.safetensors",
        f"fsync {here}/.draft.c/{STATE}",
        f"fsync {here}/.draft.c",
        "rename c -> .old.c",
        "rename .draft.c -> c",
        f"fsync {here}",
        f"unlink {STATE}",
        f"unlink {MARK}",
        "rmdir .old.c",
    ]


def test_the_parent_of_each_new_folder_is_flushed(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path.parent, monkeypatch)

    make(tmp_path / "a" / "b")

    flushed = [text for text in recorder.seen if text.startswith("fsync")]
    assert flushed == [f"fsync {tmp_path.name}", f"fsync {tmp_path.name}/a"]


def test_an_old_folder_that_cannot_be_deleted_does_not_undo_the_replacement(tmp_path, monkeypatch):
    folder_with(tmp_path / "c", "old")

    def refuse(*_, **__):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with whole_or_absent(tmp_path / "c") as draft:
            (draft / STATE).write_text("new")
    assert (tmp_path / "c" / STATE).read_text() == "new"

    tidy(tmp_path)
    assert names(tmp_path) == ["c"]


def test_an_old_folder_without_a_replacement_is_restored_by_the_next_write(tmp_path):
    folder_with(unfinished(tmp_path, "old", "c"), "old")

    with pytest.raises(KeyError), whole_or_absent(tmp_path / "c"):
        raise KeyError

    assert (tmp_path / "c" / STATE).read_text() == "old"


def test_a_folder_is_renamed_before_its_deletion(tmp_path, monkeypatch):
    folder_with(tmp_path / "c", "old")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(OwnedFolders, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        delete(tmp_path / "c")

    assert not (tmp_path / "c").exists()
    (left,) = names(tmp_path)
    assert left.startswith(".samestep-gone-")


def test_the_next_writer_deletes_unfinished_folders_and_no_other(tmp_path):
    for kind, name in (("draft", "step-1"), ("gone", "step-2"), ("old", "step-3")):
        folder_with(unfinished(tmp_path, kind, name), name)
    for name in ("step-3", "step-4"):
        folder_with(tmp_path / name, name)
    unfinished(tmp_path, "draft", "step-5").mkdir()  # killed before the mark was written
    half = unfinished(tmp_path, "draft", "step-6")
    half.mkdir()
    (half / MARK).write_bytes(OwnedFolders.claim(tmp_path).mark[:20])

    assert tidy(tmp_path) is None

    assert names(tmp_path) == ["step-3", "step-4"]


def test_a_replaced_folder_gets_its_name_back_unless_the_new_folder_exists(tmp_path):
    folder_with(unfinished(tmp_path, "old", "step-3"), "old")
    folder_with(unfinished(tmp_path, "old", "step-4"), "old")
    folder_with(tmp_path / "step-4", "new")

    restore(tmp_path)
    restore(tmp_path / "none")

    assert (tmp_path / "step-3" / STATE).read_text() == "old"
    assert (tmp_path / "step-4" / STATE).read_text() == "new"


def contents(parent):
    """Return everything below `parent` (bytes, link targets, times), without the identity of the run."""
    return {
        str(path.relative_to(parent)): (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            path.lstat().st_mtime_ns,
        )
        for path in sorted(parent.rglob("*"))
        if path.name != IDENTITY_FILE
    }


@pytest.fixture
def user_folders(tmp_path):
    """Folders of a user with names like those of samestep: each must be reported and kept."""
    parent, outside = tmp_path / "checkpoints", tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("years of work")
    parent.mkdir()
    for name in (".notes.draft-2", ".step-3.old-77", ".photos.gone-2024"):
        (parent / name).mkdir()
        (parent / name / "mine").write_text(name)
    (parent / ".link.draft-2").symlink_to(outside)
    unfinished(parent, "draft", "link").symlink_to(outside)
    unfinished(parent, "old", "link").symlink_to(outside)
    for file in ("mine", STATE):  # under our very name, but without our mark
        path = unfinished(parent, "gone", file)
        path.mkdir()
        (path / file).write_text("mine")
    marked = unfinished(parent, "draft", "with-a-foreign-file")
    folder_with(marked, "ours")
    (marked / "mine").write_text("mine")
    other = OwnedFolders(parent, "0" * 32)
    (parent / hidden_name("draft", "another-run", OwnedFolders.claim(parent).identity)).mkdir()
    (next(parent.glob("*.another-run")) / MARK).write_bytes(other.mark)
    other.begin("another-run")
    unfinished(parent, "gone", "file").write_text("a file where a folder is expected")
    return parent


def test_folders_that_this_run_did_not_create_are_reported_and_kept(user_folders):
    before = contents(user_folders.parent)

    text = tidy(user_folders)

    assert {path.name for path in user_folders.iterdir()} - {IDENTITY_FILE} == {
        name for name in before_names(before) if name in text
    }
    after = contents(user_folders.parent)
    assert after == before
    assert "\n" not in text


def before_names(before):
    return {name.split("/")[1] for name in before if name.startswith("checkpoints/")}


@pytest.mark.parametrize("put", ["file", "empty folder", "link", "unmarked", "another run's"])
def test_an_existing_path_of_another_owner_is_not_replaced(tmp_path, put):
    path = tmp_path / "c"
    if put == "file":
        path.write_text("mine")
    elif put == "link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    elif put == "another run's":
        OwnedFolders(tmp_path, "0" * 32).begin("c").rename(path)
    else:
        path.mkdir()
        if put == "unmarked":
            (path / STATE).write_text("mine")
    before = contents(tmp_path)

    with pytest.raises(FileExistsError), whole_or_absent(path):
        pass

    assert contents(tmp_path) == before


def test_a_link_in_place_of_a_folder_is_not_followed_by_a_deletion(tmp_path):
    own = OwnedFolders.claim(tmp_path)
    draft = own.begin("c")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / STATE).write_text("mine")
    draft.rename(tmp_path / "elsewhere")
    draft.symlink_to(tmp_path / "outside")

    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the system
        own.remove(draft.name)

    assert names(tmp_path / "outside") == [STATE]


def test_an_identity_file_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / IDENTITY_FILE).write_text("mine")

    with pytest.raises(OSError, match="not samestep's"):
        tidy(tmp_path)

    assert (tmp_path / IDENTITY_FILE).read_text() == "mine"


def test_an_empty_identity_file_of_a_killed_writer_is_filled(tmp_path):
    (tmp_path / IDENTITY_FILE).touch()

    assert OwnedFolders.claim(tmp_path) == OwnedFolders.find(tmp_path)
