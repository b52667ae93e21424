"""Scripts that change files from before the run read the same in an overlay, and change no file below it."""

import bz2
import csv
import dbm.dumb
import fcntl
import glob
import gzip
import io
import json
import lzma
import os
import shelve
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from samestep.autopilot.files.file_calls import redirected
from samestep.autopilot.files.overlay_files import Overlay
from support.file_sequences import Switch, tree


@pytest.fixture(scope="module")
def switch():
    handler = Switch()
    with redirected(handler):
        yield handler


SCRIPTS = []


def script(function):
    SCRIPTS.append(function)
    return function


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_reads_the_same_in_an_overlay(switch, tmp_path, monkeypatch, script):
    results = {}
    for name in ("plain", "beneath"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        before_the_run()
    before = tree(tmp_path / "beneath")
    (tmp_path / "overlay").mkdir()
    for name, calls in (("plain", None), ("beneath", Overlay(tmp_path / "overlay"))):
        monkeypatch.chdir(tmp_path / name)
        with switch.to(calls):
            results[name] = script()
    assert results["beneath"] == results["plain"]
    assert tree(tmp_path / "beneath") == before


def before_the_run():
    """Make the files that exist before the run, in the working folder."""
    Path("cfg.json").write_text('{"lr": 64.0}')
    Path("log.csv").write_text("step,loss\n0,1\n")
    Path("plain.bin").write_bytes(bytes(range(64)))
    for number in range(5):
        os.makedirs(f"checkpoints/{number}")
        torch.save(torch.full((2,), float(number)), f"checkpoints/{number}/model.pt")
    torch.save({"w": torch.ones(3)}, "weights.pt")
    safetensors.torch.save_file({"w": torch.ones(3)}, "weights.safetensors")
    np.save("array.npy", np.arange(6.0))
    Path("latest").symlink_to("checkpoints/4")
    with tarfile.open("old.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("first"))
    with zipfile.ZipFile("old.zip", "w") as archive:
        archive.writestr("first", "1")
    with sqlite3.connect("old.db") as database:
        database.execute("create table steps (loss)")
        database.execute("insert into steps values (1)")
    database.close()
    with dbm.dumb.open("old.dumb", "c") as database:
        database["a"] = "1"
    for name, opener in (("old.gz", gzip.open), ("old.bz2", bz2.open), ("old.xz", lzma.open)):
        with opener(name, "wt") as file:
            file.write("1\n")


@script
def a_configuration_is_rewritten():
    seen = []
    for _ in range(5):
        with open("cfg.json") as file:
            config = json.load(file)
        seen.append(config["lr"])
        config["lr"] /= 2
        with open("cfg.json", "w") as file:
            json.dump(config, file)
    return seen


@script
def rows_are_counted_and_appended():
    seen = []
    for step in range(4):
        with open("log.csv", newline="") as file:
            seen.append(len(list(csv.reader(file))))
        with open("log.csv", "a", newline="") as file:
            csv.writer(file).writerow([step, seen[-1]])
    return seen, os.path.getsize("log.csv"), Path("log.csv").read_text()


@script
def files_are_removed_renamed_and_replaced():
    os.remove("log.csv")
    os.rename("cfg.json", "before.json")
    Path("weights.tmp").write_text("new")
    os.replace("weights.tmp", "weights.pt")
    Path("plain.bin").unlink()
    Path("plain.bin").write_text("made again")
    found = [os.path.exists(name) for name in ("log.csv", "cfg.json", "before.json", "weights.tmp")]
    with pytest.raises(FileNotFoundError, match=r"\] No such file or directory: 'log.csv'"):
        open("log.csv")  # noqa: SIM115
    return (
        found,
        Path("weights.pt").read_text(),
        Path("before.json").read_text(),
        Path("plain.bin").read_text(),
    )


@script
def checkpoints_are_rotated_as_listed():
    kept = []
    for step in range(3):
        os.makedirs(f"checkpoints/new{step}")
        torch.save(torch.full((2,), 10.0 + step), f"checkpoints/new{step}/model.pt")
        oldest = min(os.listdir("checkpoints"))
        shutil.rmtree(f"checkpoints/{oldest}")
        kept.append(sorted(os.listdir("checkpoints")))
    return kept, torch.load("checkpoints/new1/model.pt").tolist(), torch.load("latest/model.pt").tolist()


@script
def folders_are_renamed_and_what_is_in_them_is_changed():
    os.rename("checkpoints", "old")
    os.makedirs("checkpoints/4")
    Path("checkpoints/4/model.pt").write_text("new")
    torch.save(torch.zeros(1), "old/3/model.pt")
    shutil.move("old/2", "old/3/2")
    shutil.copytree("old/0", "copied")
    os.rename("old", "older")
    return (
        Path("latest/model.pt").read_text(),
        torch.load("older/3/model.pt").tolist(),
        torch.load("older/3/2/model.pt").tolist(),
        torch.load("copied/model.pt").tolist(),
        sorted(map(str, Path("older").rglob("*"))),
    )


@script
def links_are_made_and_written_through():
    Path("log").symlink_to("log.csv")
    Path("checkpoints/best").symlink_to("../checkpoints/2", target_is_directory=True)
    with open("log", "a") as file:
        file.write("through\n")
    Path("latest/notes").write_text("4")
    os.link("cfg.json", "cfg2.json")
    Path("cfg2.json").write_text("{}")
    os.unlink("latest")
    os.symlink("checkpoints/best", "latest")
    return (
        Path("log.csv").read_text(),
        Path("checkpoints/4/notes").read_text(),
        Path("cfg.json").read_text(),
        os.path.samefile("log", "log.csv"),
        os.path.samefile("cfg.json", "cfg2.json"),
        os.readlink("latest"),
        torch.load("latest/model.pt").tolist(),
        os.path.realpath("latest") == os.path.join(os.getcwd(), "checkpoints/2"),
    )


@script
def archives_are_appended():
    with tarfile.open("old.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("second"))
    with zipfile.ZipFile("old.zip", "a") as archive:
        archive.writestr("second", "2")
    for name, opener in (("old.gz", gzip.open), ("old.bz2", bz2.open), ("old.xz", lzma.open)):
        with opener(name, "at") as file:
            file.write("2\n")
    texts = []
    for name, opener in (("old.gz", gzip.open), ("old.bz2", bz2.open), ("old.xz", lzma.open)):
        with opener(name, "rt") as file:
            texts.append(file.read())
    with tarfile.open("old.tar") as archive:
        return archive.getnames(), zipfile.ZipFile("old.zip").namelist(), texts


@script
def databases_are_changed():
    seen = []
    for step in range(3):
        with sqlite3.connect("old.db") as database:
            database.execute("insert into steps values (?)", (step,))
            seen.append(database.execute("select count(*) from steps").fetchone())
        database.close()
    reader = sqlite3.connect(f"file:{os.path.abspath('old.db')}?mode=ro", uri=True)
    seen.append(reader.execute("select sum(loss) from steps").fetchone())
    reader.close()
    with sqlite3.connect("new.db") as database:
        database.execute("create table steps (loss)")
    database.close()
    with sqlite3.connect(":memory:") as database:
        database.execute("create table steps (loss)")
    database.close()
    with dbm.dumb.open("old.dumb", "c") as database:
        database["b"] = "2"
        seen.append(len(database))
    with shelve.Shelf(dbm.dumb.open("shelf", "c")) as shelf:
        shelf["a"] = [1]
        seen.append(dict(shelf))
    return seen, sorted(name for name in os.listdir() if "db" in name)


@script
def low_level_functions_write():
    with io.FileIO("plain.bin", "r+") as raw:
        assert isinstance(raw, io.FileIO)
        raw.write(b"FileIO")
    with open("plain.bin", "rb", buffering=0) as raw:
        assert isinstance(raw, io.FileIO)
    with io.BufferedWriter(io.FileIO("made.bin", "w")) as file:
        file.write(b"1")
    number = os.open("plain.bin", os.O_RDWR)
    fcntl.flock(number, fcntl.LOCK_EX)
    os.pwrite(number, b"pwrite", 10)
    os.close(number)
    os.truncate("log.csv", 4)
    with open("cfg.json", "rb+") as file:
        file.truncate(3)
    os.mkfifo("fifo")
    with pytest.raises(FileExistsError):
        os.mkfifo("fifo")
    os.mknod("node")
    return (
        Path("plain.bin").read_bytes(),
        Path("log.csv").read_text(),
        Path("cfg.json").read_text(),
        stat.S_ISFIFO(os.stat("fifo").st_mode),
        os.path.getsize("node"),
    )


@script
def attributes_are_changed():
    os.chmod("cfg.json", 0o600)
    Path("log.csv").chmod(0o640)
    os.utime("plain.bin", (1000, 2000))
    os.utime("checkpoints/0/model.pt", (1000, 3000))
    os.chown("weights.pt", os.getuid(), os.getgid())
    shutil.copy2("plain.bin", "copy.bin")
    shutil.copystat("plain.bin", "array.npy")
    modes = [oct(os.stat(name).st_mode) for name in ("cfg.json", "log.csv")]
    times = [
        os.path.getmtime(name) for name in ("plain.bin", "checkpoints/0/model.pt", "copy.bin", "array.npy")
    ]
    with open("log.csv", "a") as file:
        file.write("1")
    return modes, times, oct(os.stat("log.csv").st_mode), np.load("array.npy").tolist()


@script
def torch_and_others_read_and_write_past_python():
    warnings.simplefilter("ignore")
    module = torch.jit.script(torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        module.weight.fill_(1)
    torch.jit.save(module, "module.jit")
    with torch.no_grad():
        module.weight.fill_(2)
    module.save("module.jit")
    loaded = torch.jit.load("module.jit").weight.tolist()
    weights = torch.load("weights.pt", mmap=True)["w"].tolist()
    torch.save({"w": torch.zeros(3)}, "weights.pt")
    again = torch.load("weights.pt", mmap=True)["w"].tolist()
    shared = torch.from_file("plain.bin", shared=True, size=4, dtype=torch.uint8)
    shared.fill_(7)
    stored = torch.UntypedStorage.from_file("shared.bin", True, 4)
    stored.fill_(1)
    first = safetensors.torch.load_file("weights.safetensors")["w"].tolist()
    safetensors.torch.save_file({"w": torch.zeros(2)}, "weights.safetensors")
    with safetensors.safe_open("weights.safetensors", "pt") as opened:
        second = opened.get_tensor("w").tolist()
    mapped = np.memmap("array.npy", mode="r+", dtype=np.uint8)
    mapped[-1] = 1
    mapped.flush()
    np.arange(3, dtype=np.uint8).tofile("numbers.bin")
    with torch.autograd.profiler.profile(use_kineto=True) as profile:
        torch.ones(1)
    profile.export_chrome_trace("run.trace")
    return (
        *(loaded, weights, again, first, second),
        Path("plain.bin").read_bytes(),
        Path("shared.bin").read_bytes(),
        Path("array.npy").read_bytes(),
        np.fromfile("numbers.bin", dtype=np.uint8).tolist(),
        os.path.exists("run.trace"),
    )


@script
def a_folder_is_entered():
    here = os.getcwd()
    os.makedirs("out/deep")
    os.chdir("out/deep")
    Path("a.txt").write_text("1")
    os.rename("../../cfg.json", "cfg.json")
    seen = os.path.relpath(os.getcwd(), here), sorted(os.listdir("..")), Path("cfg.json").read_text()
    os.chdir("../../latest")
    inside = os.path.relpath(os.getcwd(), here), torch.load("model.pt").tolist(), os.listdir()
    Path("../4/model.pt").unlink()
    left = os.path.exists("model.pt"), Path.cwd().name
    os.chdir(here)
    return seen, inside, left, sorted(os.listdir("checkpoints/4")), os.getcwdb() == os.fsencode(here)


@script
def folders_are_used_by_their_descriptors():
    number = os.open("checkpoints", os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("made", dir_fd=number)
    os.rename("0", "zero", src_dir_fd=number, dst_dir_fd=number)
    os.unlink("1/model.pt", dir_fd=number)
    os.rmdir("1", dir_fd=number)
    inner = os.open("made/x", os.O_WRONLY | os.O_CREAT, dir_fd=number)
    os.write(inner, b"1")
    os.close(inner)
    size = os.stat("made/x", dir_fd=number).st_size
    names = sorted(os.listdir(number)), sorted(entry.name for entry in os.scandir(number))
    os.close(number)
    return (
        size,
        names,
        [(sorted(folders), sorted(files)) for _, folders, files, _ in os.fwalk("checkpoints/made")],
    )


@script
def a_descriptor_gets_the_number_of_another_folder():
    os.mkdir("made")
    closed, kept = (os.open(name, os.O_RDONLY | os.O_DIRECTORY) for name in ("made", "checkpoints"))
    os.dup2(kept, closed)  # as a number is used again
    os.mkdir("new", dir_fd=closed)
    for number in (closed, kept):
        os.close(number)
    return sorted(os.listdir("checkpoints")), os.listdir("made")


@script
def bytes_and_keywords_are_paths_too():
    os.mkdir(path=b"out")
    with open(file=b"out/a", mode="w") as file:
        file.write("1")
    os.rename(src="cfg.json", dst="out/cfg.json")
    os.replace(b"log.csv", dst=b"out/log.csv")
    return (
        sorted(os.listdir(b"out")),
        sorted(entry.path for entry in os.scandir(b"out")),
        os.listdir(path="latest"),
    )


@script
def temporary_files_replace_what_was_there():
    for _ in range(2):
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write("atomic")
        os.replace(file.name, "cfg.json")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "new.json").write_text("moved")
        shutil.move(os.path.join(folder, "new.json"), "log.csv")
    return Path("cfg.json").read_text(), Path("log.csv").read_text()


@script
def folders_are_listed():
    seen = [os.listdir("checkpoints"), glob.glob("checkpoints/*")]
    for number in (9, 7, 8):
        Path(f"checkpoints/{number}").mkdir()
        Path(f"checkpoints/{number}/x").touch()
    seen += [os.listdir("checkpoints"), [one.name for one in Path("checkpoints").iterdir()]]
    shutil.rmtree("checkpoints/2")
    Path("checkpoints/2").mkdir()
    seen += [sorted(one.name for one in os.scandir("checkpoints"))]
    seen.append([(folder, sorted(folders), files) for folder, folders, files in os.walk("checkpoints")])
    return [sorted(one) for one in seen]


def test_functions_in_modules_are_restored():
    before = bz2._builtin_open, tarfile.bltn_open, open, io.FileIO, os.stat, sqlite3.connect
    groups = set(os.supports_dir_fd), set(os.supports_follow_symlinks)
    other = Switch()
    with redirected(other):
        assert bz2._builtin_open is open is io.open is tarfile.bltn_open
        assert os.stat in os.supports_follow_symlinks
    assert before == (bz2._builtin_open, tarfile.bltn_open, open, io.FileIO, os.stat, sqlite3.connect)
    assert groups == (set(os.supports_dir_fd), set(os.supports_follow_symlinks))
