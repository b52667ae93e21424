"""What a kill leaves behind is told apart by name, and put right by the next writer."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
import torch

from samestep.checkpoint.files import SealedFile, delete, make, restore, tidy, whole_or_absent


def folder_with(path, text):
    path.mkdir()
    (path / "f").write_text(text)


class FullDisk:
    """A stream that takes some bytes and no more."""

    left = 500

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = close = lambda self: None


def names(parent):
    return sorted(path.name for path in parent.iterdir())


def test_a_sealed_file_knows_its_bytes(tmp_path):
    data = bytes(range(256)) * 10_000  # more than a piece

    with SealedFile(tmp_path / "f") as file:
        assert file.write(data) == len(data)
        assert file.write(memoryview(data)[::1][:7]) == 7

    written = (tmp_path / "f").read_bytes()
    assert written == data + data[:7]
    assert (file.seal.bytes, file.seal.sha256) == (len(written), hashlib.sha256(written).hexdigest())


def test_a_full_disk_is_what_is_told_whatever_comes_of_it(tmp_path):
    file = SealedFile(tmp_path / "f")
    file._stream.close()
    file._stream = FullDisk()

    with pytest.raises(OSError, match="No space left"), file:
        torch.save({"w": torch.zeros(10)}, file)


def test_a_file_system_that_cannot_flush_folders_will_do(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    with whole_or_absent(tmp_path / "c"):
        pass

    assert names(tmp_path) == ["c"]


def test_a_draft_gets_its_name_at_the_end_of_the_block(tmp_path):
    with whole_or_absent(tmp_path / "deep" / "c") as draft:
        (draft / "f").write_text("new")
        assert not (tmp_path / "deep" / "c").exists()

    assert names(tmp_path / "deep") == ["c"]
    assert (tmp_path / "deep" / "c" / "f").read_text() == "new"


def test_a_failure_while_writing_leaves_neither_a_folder_nor_a_draft(tmp_path):
    with pytest.raises(FileNotFoundError), whole_or_absent(tmp_path / "c") as draft:
        (draft / "half").write_text((draft / "missing").read_text())

    assert names(tmp_path) == []


def test_a_failure_leaves_the_one_that_was_to_be_replaced(tmp_path):
    folder_with(tmp_path / "c", "old")

    with pytest.raises(KeyError), whole_or_absent(tmp_path / "c"):
        raise KeyError

    assert (tmp_path / "c" / "f").read_text() == "old"
    assert names(tmp_path) == ["c"]


def test_a_folder_is_replaced_and_the_old_one_deleted(tmp_path):
    folder_with(tmp_path / "c", "old")

    with whole_or_absent(tmp_path / "c") as draft:
        (draft / "f").write_text("new")
        assert (tmp_path / "c" / "f").read_text() == "old"

    assert (tmp_path / "c" / "f").read_text() == "new"
    assert names(tmp_path) == ["c"]


class Recorder:
    """Keeps the order in which things reach the disk, by names below `folder`."""

    def __init__(self, folder, monkeypatch):
        self.seen = []
        for owner, name, whom in (
            (os, "fsync", lambda handle: Path(f"/proc/self/fd/{handle}").readlink()),
            (Path, "rename", lambda path, target: f"{path} -> {target}"),
            (Path, "unlink", str),
            (Path, "rmdir", str),
        ):
            monkeypatch.setattr(owner, name, self.recording(folder, name, getattr(owner, name), whom))

    def recording(self, folder, name, function, whom):
        def recorded(*arguments, **options):
            told = str(whom(*arguments, **options)).replace(f"-{os.getpid()}", "")
            result = function(*arguments, **options)  # what fails has not happened
            self.seen.append(f"{name} {told}".replace(f"{folder}/", ""))
            return result

        return recorded


def test_a_name_is_given_once_its_bytes_are_on_disk_and_the_old_ones_go_once_the_name_is(
    tmp_path, monkeypatch
):
    folder_with(tmp_path / "c", "old")
    recorder = Recorder(tmp_path.parent, monkeypatch)

    with whole_or_absent(tmp_path / "c") as draft:
        for name in ("f", "g"):
            with SealedFile(draft / name) as file:
                file.write(b"new")

    here = tmp_path.name
    assert recorder.seen == [
        f"fsync {here}/.c.draft/f",
        f"fsync {here}/.c.draft/g",
        f"fsync {here}/.c.draft",
        f"rename {here}/c -> {here}/.c.old",
        f"rename {here}/.c.draft -> {here}/c",
        f"fsync {here}",
        f"unlink {here}/.c.old/f",
        f"rmdir {here}/.c.old",
    ]


def test_each_new_folder_is_on_disk_in_the_one_above_it(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path.parent, monkeypatch)

    make(tmp_path / "a" / "b")

    flushed = [told for told in recorder.seen if told.startswith("fsync")]
    assert flushed == [f"fsync {tmp_path.name}", f"fsync {tmp_path.name}/a"]


def test_an_old_one_that_cannot_be_removed_does_not_undo_the_new_one(tmp_path, monkeypatch):
    folder_with(tmp_path / "c", "old")

    def refuse(_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with whole_or_absent(tmp_path / "c") as draft:
            (draft / "f").write_text("new")
    assert (tmp_path / "c" / "f").read_text() == "new"

    tidy(tmp_path)
    assert names(tmp_path) == ["c"]


def test_an_old_one_whose_place_was_not_taken_is_the_one_until_it_is(tmp_path):
    folder_with(tmp_path / f".c.old-{os.getpid()}", "old")

    with pytest.raises(KeyError), whole_or_absent(tmp_path / "c"):
        raise KeyError

    assert (tmp_path / "c" / "f").read_text() == "old"


def test_deleting_takes_the_name_first(tmp_path, monkeypatch):
    folder_with(tmp_path / "c", "old")

    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("samestep.checkpoint.files.remove", killed)
    with pytest.raises(KeyboardInterrupt):
        delete(tmp_path / "c")

    assert not (tmp_path / "c").exists()
    (left,) = names(tmp_path)
    assert left.startswith(".c.gone-")


def test_the_next_writer_clears_away_what_was_in_hand_and_nothing_else(tmp_path):
    for name in (
        ".step-1.draft-77",
        ".step-2.gone-77",
        ".step-3.old-77",
        "step-3",
        "step-4",
        ".mine",
        "draft-1",
    ):
        folder_with(tmp_path / name, name)

    tidy(tmp_path)

    assert names(tmp_path) == [".mine", "draft-1", "step-3", "step-4"]


def test_a_folder_that_was_being_replaced_gets_its_name_again_unless_the_new_one_has_it(tmp_path):
    folder_with(tmp_path / ".step-3.old-77", "old")
    folder_with(tmp_path / ".step-4.old-77", "old")
    folder_with(tmp_path / "step-4", "new")

    restore(tmp_path)
    restore(tmp_path / "none")

    assert (tmp_path / "step-3" / "f").read_text() == "old"
    assert (tmp_path / "step-4" / "f").read_text() == "new"
