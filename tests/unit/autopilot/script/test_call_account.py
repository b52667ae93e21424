"""Calls are attributed to lines of user code, also through libraries, with their reasons."""

import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import samestep
from samestep.autopilot.script.call_account import (
    Account,
    StepCosts,
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
        scope = {"inner": inner, "__name__": "__main__"}
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
        (("<stdin>", f"{VENV}/timm/vit.py"), "<stdin>:3"),
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


def test_packages_of_a_target_folder_are_libraries(tmp_path, monkeypatch):
    """Only this finds that packages of ``pip install --target`` are sent to helpers as code of the script."""
    packages, program = tmp_path / "packages", ModuleType("__main__")
    (packages / "timm-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), packages, [], b"packages"])

    assert library_of(f"{packages}/timm/vit.py") == "timm"
    assert is_user_code(f"{packages}2/net.py")
    program.__file__ = f"{tmp_path}/train.py"
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert library_of(f"{packages}/timm/vit.py") == "timm"
    program.__file__ = f"{packages}/train.py"
    assert is_user_code(f"{packages}/net.py")


def test_code_of_torch_is_internal_and_that_of_other_libraries_is_not():
    assert not is_internal_code(f"{VENV}/timm/data.py")
    assert not is_internal_code(f"{Path(torch.__file__).parent}vision/datasets/mnist.py")
    assert is_internal_code(torch.__file__)


@pytest.mark.parametrize(
    ("reasons", "lines"),
    [
        (("few", "few", "a hook"), ["2 calls unsplit (few)", "1 call unsplit (a hook)"]),
        (  # those that differ in sizes have one line, and those of other lines of code do not
            ("size 12 of 2.5e-07 (net.py:3)", "size 9 of 0.4 (net.py:3)", "size 9 of 0.4 (net.py:4)"),
            ["2 calls unsplit (size 12 of 2.5e-07 (net.py:3))", "1 call unsplit (size 9 of 0.4 (net.py:4))"],
        ),
    ],
)
def test_the_report_has_a_line_for_each_reason(reasons, lines):
    account = Account()
    for why in reasons:
        account.note_unsplit("Net at train.py:3", why)

    assert [line.split(": ", 1)[1] for line in account.lines()] == lines


class Training:
    """A training whose steps take given seconds by a clock of its own."""

    def __init__(self, size=2):
        self.now = 0.0
        self.costs = StepCosts(size, clock=lambda: self.now)
        self.optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    def steps(self, number, seconds, *, split, checks_s=0.0, optimizer=None, place="Net at train.py:3"):
        for _ in range(number):
            for is_split in split:
                self.costs.note_call(place, is_split=is_split)
            if checks_s:
                self.costs.note_check(checks_s)
            self.now += seconds + checks_s
            self.costs.after_step(optimizer or self.optimizer)
        return self

    def is_faster_unsplit(self, place="Net at train.py:3"):
        return self.costs.is_faster_unsplit(lambda: place)


SPLIT, UNSPLIT = (True,), (False,)


@pytest.mark.parametrize(("unsplit_s", "is_faster"), [(0.009, True), (0.0099, False), (0.02, False)])
def test_unsplit_steps_are_chosen_if_they_are_clearly_shorter(unsplit_s, is_faster):
    training = Training().steps(4, 0.01, split=SPLIT).steps(4, unsplit_s, split=UNSPLIT)
    assert training.is_faster_unsplit() is is_faster


def test_few_steps_do_not_decide():
    training = Training().steps(4, 0.01, split=SPLIT).steps(2, 0.001, split=UNSPLIT)
    assert not training.is_faster_unsplit()


def test_new_steps_change_the_decision():
    training = Training().steps(4, 0.01, split=SPLIT).steps(4, 0.001, split=UNSPLIT)
    assert training.is_faster_unsplit()
    assert "at the end" in training.costs.line()
    training.steps(3, 0.0005, split=SPLIT)
    assert not training.is_faster_unsplit()
    assert "at the end" not in training.costs.line()


def test_one_split_step_is_no_comparison():
    line = Training().steps(2, 0.01, split=SPLIT).steps(3, 0.02, split=UNSPLIT).costs.line()
    assert "20 ms" in line
    assert "10 ms" not in line


def test_steps_of_another_training_are_no_comparison():
    """Only this finds unsplit steps of a small model as the reason to compute a large one unsplit."""
    small = "Small at tune.py:9"
    training = Training().steps(9, 0.1, split=SPLIT).steps(9, 0.01, split=UNSPLIT, place=small)
    assert not training.is_faster_unsplit()
    assert not training.is_faster_unsplit(small)
    line = training.costs.line()
    assert "100 ms" in line
    assert "10 ms" not in line
    training.steps(4, 0.05, split=UNSPLIT)
    assert training.is_faster_unsplit()
    assert not training.is_faster_unsplit(small)


def test_a_step_with_a_check_and_the_first_one_do_not_count():
    training = Training().steps(1, 5.0, split=SPLIT).steps(4, 0.02, split=UNSPLIT)
    training.steps(3, 0.02, split=SPLIT, checks_s=9.0).steps(3, 0.01, split=SPLIT)
    line = training.costs.line()
    assert "10 ms a step" in line
    assert "20 ms" in line
    assert "27 s" in line


def test_a_step_is_the_time_between_two_steps_of_one_optimizer():
    training, other = Training(), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for _ in range(4):
        training.steps(1, 0.01, split=SPLIT)
        training.steps(1, 0.03, split=SPLIT, optimizer=other)
    assert "40 ms a step" in training.costs.line()


def test_a_step_without_calls_is_not_measured():
    training = Training().steps(4, 0.01, split=())
    assert training.costs.line() is None


def test_the_report_names_both_ways_and_advises_one_worker_if_that_is_faster():
    fast = Training(4).steps(4, 0.01, split=SPLIT).steps(4, 0.03, split=UNSPLIT).costs.line()
    slow = Training(4).steps(4, 0.01, split=SPLIT).steps(4, 0.003, split=UNSPLIT).costs.line()
    alone = Training(4).steps(4, 0.01, split=UNSPLIT).costs.line()
    assert [("-n 1" in line) for line in (fast, slow, alone)] == [False, True, False]
    assert all(line.startswith("4 workers: 10 ms a step") for line in (fast, slow, alone))
