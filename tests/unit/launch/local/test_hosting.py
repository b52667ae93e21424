import errno
import importlib
import os
import secrets
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType

import pytest
import torch

from samestep.base.errors import UsageError
from samestep.base.folders import shown
from samestep.launch.job import Program
from samestep.launch.local import hosting
from samestep.launch.local.hosting import (
    Ending,
    _in_its_own_words,
    ending_of,
    exited,
    release_program,
    unload_shadowed,
    write_failure,
)
from support.systems import small_file_system


@pytest.mark.parametrize(
    ("asked", "code"), [(None, 0), (0, 0), (7, 7), (-1, 255), (256, 0), (257, 1), (True, 1)]
)
def test_an_exit_code_is_the_last_eight_bits_of_the_number(asked, code):
    assert exited(SystemExit(asked)) == Ending(exit_code=code)


def test_any_other_exit_value_is_printed_and_is_a_failure():
    ending = exited(SystemExit("no data"))
    assert (ending.exit_code, ending.traceback) == (1, "no data\n")


@pytest.fixture
def error():
    try:
        raise ValueError("the cause")
    except ValueError as caught:
        return caught


def words(error, monkeypatch, hook):
    """Return the ending with the report of the program's hook, and the provisional endings."""
    monkeypatch.setattr(sys, "excepthook", hook)
    before = []
    return _in_its_own_words(error, ending_of(error), before.append), before


def test_an_error_is_reported_as_python_prints_it(error, monkeypatch, capsys):
    ending, before = words(error, monkeypatch, sys.__excepthook__)

    assert ending == ending_of(error)
    assert ending.traceback.endswith("ValueError: the cause\n")
    assert (before, capsys.readouterr().err) == ([], "")


def test_the_excepthook_of_the_program_writes_the_report(error, monkeypatch, capsys):
    def hook(kind, value, trace):
        sys.stderr.buffer.write(b"[mine] ")
        print("it was", value, file=sys.stderr)

    ending, before = words(error, monkeypatch, hook)

    assert (ending.traceback, ending.exit_code) == ("[mine] it was the cause\n", 1)
    assert before == [ending_of(error)], "a hook that never returns would take the error with it"
    assert capsys.readouterr().err == ""


def test_errors_of_the_excepthook_and_of_the_program_are_both_reported(error, monkeypatch):
    def hook(*_):
        print("begun", file=sys.stderr)
        raise RuntimeError("no hook")

    ending, _ = words(error, monkeypatch, hook)
    assert ending.traceback.startswith("begun\nError in sys.excepthook:\nTraceback ")
    assert "RuntimeError: no hook\n\nOriginal exception was:\nTraceback " in ending.traceback
    assert ending.traceback.endswith("ValueError: the cause\n")
    assert (ending.error, ending.exit_code) == ("ValueError", 1)


def test_without_a_launcher_the_excepthook_prints_the_error(error, monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", lambda *error: traceback.print_exception(*error))
    ending = _in_its_own_words(error, ending_of(error), None)

    assert ending.traceback == ""
    assert capsys.readouterr().err.endswith("ValueError: the cause\n")


def test_an_error_with_a_message_that_cannot_be_formatted_is_reported_by_its_type():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    assert (ending_of(Unprintable()).error, ending_of(Unprintable()).message) == ("Unprintable", "")


def test_a_usage_error_without_a_line_of_the_program_is_one_line():
    assert ending_of(UsageError("no such folder.")).traceback == "samestep: error: no such folder.\n"


def test_an_error_in_a_loader_process_has_the_line_of_the_data_set():
    text = (
        "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/env/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n    data\n'
        '  File "train.py", line 19, in __getitem__\n    raise OSError\nOSError: no such image\n'
    )

    assert ending_of(OSError(text)).line == "train.py:19"


def test_an_exit_has_the_line_that_called_sys_exit():
    with pytest.raises(SystemExit) as stop:
        sys.exit(3)

    assert exited(stop.value).line.rpartition(":")[0] == shown(__file__)


def test_the_code_of_a_script_has_its_absolute_path(tmp_path, monkeypatch):
    """As under `python`: a script that changes its folder finds its own source, as torch.jit.script does."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])

    module, code = hosting._main_module(Program(target="train.py"))

    assert [module.__file__, code.co_filename, shown(code.co_filename)] == [
        *(str(tmp_path / "train.py"),) * 2,
        "train.py",
    ]


class Finalized:
    def __init__(self, order, name):
        self.order, self.name = order, name

    def __del__(self):
        self.order.append(self.name)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_globals_are_released_and_files_flushed(monkeypatch, tmp_path):
    order = []
    program = ModuleType("__main__")
    kept = [(tmp_path / "kept").open("w")]  # in a module that is not the program's
    program.log = (tmp_path / "log").open("w")
    for file in (program.log, *kept):
        file.write("text")
    program.public, program._private = Finalized(order, "public"), Finalized(order, "private")
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(hosting, "_hosted", ["train.py"])

    release_program()

    assert order == ["private", "public"]
    assert [(tmp_path / name).read_text() for name in ("log", "kept")] == ["text", "text"]
    kept[0].close()


def test_globals_that_a_thread_uses_stay(monkeypatch):
    program, go = ModuleType("__main__"), threading.Event()
    program.value = 1
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(hosting, "_hosted", ["train.py"])
    thread = threading.Thread(target=lambda: go.wait())
    thread.start()
    try:
        release_program()
    finally:
        go.set()
        thread.join()

    assert program.value == 1


@pytest.mark.parametrize(("is_safe", "first"), [(False, "{}"), (True, "/library")])
def test_the_programs_folder_is_searched_first_unless_python_leaves_it_out(
    monkeypatch, tmp_path, is_safe, first
):
    monkeypatch.setattr(hosting, "is_safe_path", lambda: is_safe)
    monkeypatch.setattr(sys, "path", ["/library"])
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "train.py").touch()

    hosting._main_module(Program(target=str(tmp_path / "train.py")))

    assert sys.path == [first.format(tmp_path)]


def test_nothing_is_released_without_a_hosted_program(monkeypatch):
    program = ModuleType("__main__")
    program.value = 1
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(hosting, "_hosted", [])

    release_program()

    assert program.value == 1


@pytest.fixture
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize("file", ["secrets.py", "secrets/__init__.py"])
def test_a_module_of_the_program_comes_before_a_loaded_one(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("KEY = 1\n")
    assert unload_shadowed(str(tmp_path)) == ["secrets"]
    spec = importlib.machinery.PathFinder.find_spec("secrets", [str(tmp_path)])
    assert "secrets" not in sys.modules
    assert spec is not None
    assert spec.origin == str(tmp_path / file)


@pytest.mark.usefixtures("_modules")
def test_modules_of_a_hidden_package_are_unloaded(tmp_path: Path) -> None:
    (tmp_path / "email.py").write_text("")
    importlib.import_module("email.utils")
    assert unload_shadowed(str(tmp_path)) == ["email"]
    assert not [name for name in sys.modules if name.partition(".")[0] == "email"]


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize(
    "file",
    [
        "sys.py",  # built in
        "abc.py",  # frozen, or loaded at the start
        "os.py",
        "torch.py",
        "samestep/__init__.py",
        "__main__.py",
        "secrets/key.py",  # a folder without __init__.py comes after the library
        "secrets.txt",
        "not_loaded.py",
    ],
)
def test_other_modules_stay(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    before = dict(sys.modules)
    assert unload_shadowed(str(tmp_path)) == []
    assert sys.modules == before


@pytest.mark.usefixtures("_modules")
def test_a_loaded_module_of_the_same_folder_stays(tmp_path: Path) -> None:
    assert "secrets" not in unload_shadowed(str(Path(secrets.__file__).parent))
    assert unload_shadowed(str(tmp_path / "absent")) == []


def error_of(act):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one depends on torch
        act()
    return caught.value


def test_the_report_of_a_full_disk_has_the_file(tmp_path):
    with small_file_system(tmp_path / "disk", "64k"):
        weights, lines = tmp_path / "disk" / "weights.pt", tmp_path / "disk" / "lines.txt"

        def save():
            torch.save({"w": torch.zeros(1 << 16)}, weights)

        def save_open():
            with weights.open("wb") as file:
                torch.save({"w": torch.zeros(1 << 16)}, file)

        def write():
            with lines.open("w") as stream:
                stream.write("x" * (1 << 20))
                stream.flush()

        for act, path in ((save, weights), (save_open, weights), (write, lines)):
            error = error_of(act)
            assert write_failure(error) == f"cannot write to {path}: {os.strerror(errno.ENOSPC)}"
            assert ending_of(error).unwritten == write_failure(error)


def test_a_failed_write_is_found_as_the_cause_of_another_error_and_other_errors_are_none():
    def chained():
        try:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/file")
        except OSError as error:
            raise RuntimeError("the logger failed") from error

    assert write_failure(error_of(chained)) == f"cannot write to /data/file: {os.strerror(errno.EROFS)}"
    assert write_failure(FileNotFoundError(errno.ENOENT, "no", "/data/file")) == ""
    assert write_failure(ValueError("inline_container")) == ""
