"""Calls are attributed to lines of user code, also through libraries, with their reasons."""

import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch

import samestep
from samestep.autopilot.script.call_account import (
    Account,
    calling_site,
    is_internal_code,
    is_user_code,
    library_of,
)

STANDARD = sysconfig.get_path("stdlib")
VENV = "/home/ada/project/.venv/lib/python3.11/site-packages"


def through(*files):
    """Return what `calling_site` finds for a call through functions of these files, the outermost first."""
    inner = calling_site
    for file in reversed(files):
        scope = {"inner": inner}
        exec(compile("\ndef outer():\n    return inner()", file, "exec"), scope)
        inner = scope["outer"]
    found = []
    # A frame of this test would be the user's: the outermost is code that has no file.
    exec(compile("found.append(inner())", "<string>", "exec"), {"found": found, "inner": inner})
    return found[0]


@pytest.mark.parametrize(
    ("files", "site"),
    [
        (("/home/ada/train.py",), "train.py:3"),
        (("/home/ada/train.py", f"{VENV}/lightning/trainer.py"), "train.py:3"),
        (("/home/ada/train.py", f"{STANDARD}/functools.py"), "train.py:3"),
        (("/home/ada/train.py", torch.__file__), "train.py:3"),
        (("/home/ada/train.py", samestep.__file__), "train.py:3"),
        (("/home/ada/train.py", "/home/ada/src/own/steps.py", f"{VENV}/timm/vit.py"), "steps.py:3"),
        (("/home/ada/train.py", "/usr/lib/python3/dist-packages/timm.py"), "train.py:3"),
        (("/home/ada/torchbearer.py",), "torchbearer.py:3"),
        ((f"{Path(samestep.__file__).parent}_gallery/train.py",), "train.py:3"),
    ],
)
def test_a_call_is_attributed_to_the_nearest_line_of_user_code(files, site):
    assert str(through(*files)) == site


def in_thread(files):
    """Return what `calling_site` finds in a thread, where no code of the tests is on the stack."""
    import _thread
    import queue

    answers = queue.SimpleQueue()
    scope = {"put": answers.put, "inner": calling_site}
    for file in reversed(files):
        exec(compile("def outer(inner=inner):\n    return inner()", file, "exec"), scope)
        scope["inner"] = scope["outer"]
    exec(compile("def run():\n    put(inner())", "<string>", "exec"), scope)
    _thread.start_new_thread(scope["run"], ())
    return answers.get(timeout=10)


@pytest.mark.parametrize(
    ("files", "library"),
    [
        ((f"{STANDARD}/threading.py", f"{VENV}/lightning/trainer.py"), "lightning"),
        ((f"{VENV}/lightning/trainer.py", f"{STANDARD}/functools.py"), "lightning"),
        ((f"{STANDARD}/threading.py",), "threading"),
        ((f"{VENV}/timm.py", torch.__file__), "timm"),
    ],
)
def test_without_user_code_the_library_is_named(files, library):
    assert str(in_thread(files)).split()[0] == library


def test_an_installed_program_is_user_code(monkeypatch):
    program = ModuleType("__main__")
    program.__file__ = f"{VENV}/own/train.py"
    monkeypatch.setitem(sys.modules, "__main__", program)

    assert is_user_code(f"{VENV}/own/train.py")
    assert is_user_code(f"{VENV}/own/models/net.py")
    assert not is_user_code(f"{VENV}/timm/vit.py")


def test_files_beside_an_installed_program_are_not_user_code(monkeypatch):
    program = ModuleType("__main__")
    program.__file__ = f"{VENV}/train.py"
    monkeypatch.setitem(sys.modules, "__main__", program)

    assert is_user_code(f"{VENV}/train.py")
    assert library_of(f"{VENV}/timm/vit.py") == "timm"


def test_an_environment_in_the_folder_of_the_program_is_not_user_code(monkeypatch):
    """Only this finds that an environment beside a script counts as code of the script."""
    program = ModuleType("__main__")
    program.__file__ = f"{Path(VENV).parents[3]}/train.py"
    monkeypatch.setitem(sys.modules, "__main__", program)

    assert is_user_code(program.__file__)
    assert library_of(f"{VENV}/timm/vit.py") == "timm"
    program.__file__ = f"{Path(STANDARD).parents[1]}/train.py"
    assert library_of(f"{STANDARD}/threading.py") == "threading"


def test_code_of_torch_is_internal_and_that_of_other_libraries_is_not():
    assert not is_internal_code(f"{VENV}/timm/data.py")
    assert not is_internal_code(f"{Path(torch.__file__).parent}vision/datasets/mnist.py")
    assert is_internal_code(torch.__file__)


def test_the_report_has_a_line_for_each_reason():
    account = Account()
    for why in ("few", "few", "a hook"):
        account.note_unsplit("Net at train.py:3", why)

    assert [line.split(": ", 1)[1] for line in account.lines()] == [
        "2 calls unsplit (few)",
        "1 call unsplit (a hook)",
    ]
