"""A script with an overlay reads its own files and those from before the run."""

import bz2
import importlib
import json
import os
import shutil
import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import pytest
import torch

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.overlay_files import Overlay


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    """Return an overlay; the working folder has a file from before the run."""
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    (work / "before.txt").write_text("before")
    monkeypatch.chdir(work)
    return Overlay(scratch)


def real_files():
    return sorted(str(path) for path in Path().rglob("*"))


def test_a_script_reads_its_own_files(overlay):
    with redirected(overlay):
        os.makedirs("out/deep")
        Path("out/deep/a.txt").write_text("1")
        with open("out/deep/a.txt", "a") as file:
            file.write("2")
        torch.save({"w": torch.ones(2)}, "out/model.pt")
        with open("out/log.json", "w") as file:
            json.dump([1], file)
        np.savetxt("out.txt", np.ones(2))
        with bz2.open("out.bz2", "w") as file:
            file.write(b"1")
        assert np.loadtxt("out.txt").tolist() == [1, 1]
        assert Path("out/deep/a.txt").read_text() == "12"
        assert torch.equal(torch.load("out/model.pt")["w"], torch.ones(2))
        assert sorted(os.listdir("out")) == ["deep", "log.json", "model.pt"]
        assert {entry.name: entry.is_dir() for entry in os.scandir("out")} == {
            "deep": True,
            "log.json": False,
            "model.pt": False,
        }
        assert sorted(map(str, Path("out").rglob("*.*"))) == [
            "out/deep/a.txt",
            "out/log.json",
            "out/model.pt",
        ]
        assert os.path.getsize("out/deep/a.txt") == 2
    assert real_files() == ["before.txt"]


def test_files_are_opened_by_their_descriptors(overlay):
    with redirected(overlay):
        read, write = os.pipe()
        with open(write, "w") as file:
            file.write("1")
        with open(read) as file:
            assert file.read() == "1"


def test_files_from_before_the_run_are_changed_in_a_copy(overlay):
    with redirected(overlay):
        assert Path("before.txt").read_text() == "before"
        with open("before.txt", "r+") as file:
            file.write("BE")
        assert Path("before.txt").read_text() == "BEfore"
        with open("before.txt", "a") as file:
            file.write("!")
        assert Path("before.txt").read_text() == "BEfore!"
        os.rename("before.txt", "after.txt")
        assert not os.path.exists("before.txt")
        assert os.listdir() == ["after.txt"]
        with pytest.raises(FileNotFoundError):
            Path("before.txt").read_text()
        os.remove("after.txt")
        assert os.listdir() == []
        with pytest.raises(FileNotFoundError):
            os.remove("after.txt")
    assert Path("before.txt").read_text() == "before"


def test_a_folder_that_is_created_again_is_empty(overlay):
    Path("old").mkdir()
    Path("old/x").write_text("x")
    with redirected(overlay):
        shutil.rmtree("old")
        assert not os.path.isdir("old")
        os.mkdir("old")
        assert os.listdir("old") == []
        assert not Path("old/x").exists()
    assert real_files() == ["before.txt", "old", "old/x"]


def test_temporary_files_and_devices_are_read_and_written(overlay):
    with redirected(overlay):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "q").write_text("t")
            assert (Path(folder) / "q").read_text() == "t"
        assert not os.path.exists(folder)
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("x")
            file.flush()
            assert Path(file.name).read_text() == "x"
        with open(os.devnull, "w") as file:
            file.write("x")


def test_all_functions_are_restored(overlay):
    before = open, os.stat, os.mkdir, torch.save, shutil.rmtree
    with redirected(overlay):
        assert os.stat is not before[1]
    assert (open, os.stat, os.mkdir, torch.save, shutil.rmtree) == before


def test_sockets_of_multiprocessing_are_shared(overlay):
    with redirected(overlay):
        folder = tempfile.mkdtemp(prefix="pymp-")
        try:
            with Listener(f"{folder}/listener"):
                pass
        finally:
            shutil.rmtree(folder)
    assert not os.path.exists(folder)


ARROW = """
import posix  # as a library in C, whose calls are not redirected


def memory_map(path, mode="r"):
    return posix.read(posix.open(path, posix.O_RDONLY), 10)


class OSFile:
    def __init__(self, path, mode="r"):
        self.number = posix.open(path, posix.O_WRONLY | posix.O_CREAT if mode == "w" else posix.O_RDONLY)
"""


def test_a_library_in_c_reads_and_writes_the_files_of_the_script(overlay, tmp_path, monkeypatch):
    (tmp_path / "pyarrow.py").write_text(ARROW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    with redirected(overlay):
        arrow = importlib.import_module("pyarrow")  # within the block, as a script imports it
        Path("cache.arrow").write_text("rows")
        assert arrow.memory_map("cache.arrow") == b"rows"
        file = arrow.OSFile("new.arrow", "w")
        os.close(file.number)
        assert isinstance(file, arrow.OSFile)
    assert real_files() == ["before.txt"]
    with pytest.raises(FileNotFoundError):
        arrow.memory_map("cache.arrow")


HDF5 = """
import posix


class File:
    def __init__(self, name, mode="r"):
        exclusive = posix.O_EXCL if mode in ("w-", "x") else 0
        posix.close(posix.open(name, posix.O_RDWR | posix.O_CREAT | exclusive))
"""


@pytest.mark.parametrize("names", [(), ("mode",)])
@pytest.mark.parametrize("mode", ["w-", "x"])
def test_a_file_of_hdf5_that_must_be_new_replaces_none(overlay, tmp_path, monkeypatch, names, mode):
    (tmp_path / "h5py.py").write_text(HDF5)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "h5py", raising=False)

    def opened(path, mode):
        return importlib.import_module("h5py").File(
            *[path, mode][: 2 - len(names)], **dict.fromkeys(names, mode)
        )

    with redirected(overlay):
        with pytest.raises(FileExistsError):
            opened("before.txt", mode)
        assert Path("before.txt").read_text() == "before"
        opened("new.h5", mode)
    assert real_files() == ["before.txt"]


def test_an_error_of_a_library_names_the_path_of_the_script(overlay):
    with redirected(overlay), pytest.raises(RuntimeError, match="directory runs/last does") as caught:
        torch.save({}, "runs/last/model.pt")
    assert str(overlay._lookup.root) not in str(caught.value)
