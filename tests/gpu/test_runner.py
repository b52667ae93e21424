"""The runner of the GPU checks skips checks, applies time limits, and writes exit codes and files."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from gpu_checks import __main__ as program
from gpu_checks import devices, forks, runner
from gpu_checks.context import Context, close, require
from gpu_checks.devices import Machine
from gpu_checks.one import function_of, outcome
from gpu_checks.rank_script import ON_CPUS, SYNCHRONIZERS, batch, network
from gpu_checks.registry import CHECKS, Check, by_name, selected
from gpu_checks.runner import Outcome, Request, exit_code, reason_to_skip, run_all
from gpu_checks.script_checks import require_split
from gpu_checks.scripts_table import FOLDER, SCRIPTS
from gpu_checks.tables import table

from samestep.base.errors import UsageError
from samestep.parallel.gradients import replicate


def check(**values):
    return Check(**{"name": "c", "function": "device_checks:memory", "shows": "", **values})


def request_of(kind="cuda", count=1, **values):
    return Request(**{"type": kind, "count": count, "limit_s": 60.0, **values})


@pytest.mark.parametrize(
    ("values", "request_", "runs"),
    [
        ({}, request_of(), True),
        ({}, request_of("xpu"), True),
        ({"types": ("cuda",)}, request_of("xpu"), False),
        ({"gpus": 2}, request_of(), False),
        ({"gpus": 2}, request_of(count=2), True),
        ({"gpus": 2}, request_of(shares=True), False),
        ({"gpus": 2, "shareable": True}, request_of(), False),
        ({"gpus": 2, "shareable": True}, request_of(shares=True), True),
        ({"gpus": 2, "shareable": True}, request_of("xpu", shares=True), False),
        ({"only_one": True}, request_of(), True),
        ({"only_one": True}, request_of(count=2), False),
        ({"gpus": 2}, request_of("cpu", count=2), True),
        ({"on_cpu": False}, request_of("cpu", count=2), False),
    ],
)
def test_a_check_runs_on_suitable_devices_only(values, request_, runs):
    assert (reason_to_skip(check(**values), request_) == "") is runs


@pytest.fixture
def began(monkeypatch):
    """Return the list of fake checks that have begun: name, time limit, and number that run then."""
    started, running = [], []

    class Running:
        """A check that ends when it is polled for the second time."""

        def __init__(self, check, _request, seconds):
            self.name, self.polls = check.name, 0
            running.append(self)
            started.append((check.name, seconds, len(running)))

        def outcome(self):
            self.polls += 1
            if self.polls < 2:
                return None
            running.remove(self)
            return Outcome(name=self.name, result="ok")

    monkeypatch.setattr(runner, "Running", Running)
    return started


def test_checks_after_the_time_limit_of_all_are_not_run(began):
    clock = iter([0.0, 1.0, 1.0, 9.5, 9.5])

    found = list(run_all([check(seconds=60.0)] * 2, request_of(limit_s=10.0), lambda: next(clock)))

    assert [one.result for one in found] == ["ok", "not run"]
    assert began == [("c", 9.0, 1)]


def test_checks_that_time_something_run_alone_and_last(began):
    names = [("timed", True), ("a", False), ("b", False), ("late", True), ("c", False)]
    checks = [check(name=name, alone=alone) for name, alone in names]

    found = list(run_all(checks, request_of(width=2)))

    assert {one.name for one in found} == {name for name, _ in names}
    assert [name for name, _, _ in began] == ["a", "b", "c", "timed", "late"]
    assert max(running for *_, running in began[:3]) == 2
    assert [running for *_, running in began[3:]] == [1, 1]


def run_to_its_end(one):
    while (found := one.outcome()) is None:
        time.sleep(0.01)
    return found


def start_child(check_name, context, file, *, child, hangs):
    """Start a process that does not end, as a check may."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.write_text(str(process.pid))
    if hangs:
        time.sleep(600)
    file.write_text('{"result": "ok"}')


def assert_is_gone(pid):
    with suppress(psutil.NoSuchProcess):
        # The kernel ends a killed process a moment later; a zombie waits for its new parent.
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


@pytest.mark.parametrize(("hangs", "seconds", "result"), [(True, 3.0, "failed"), (False, 60.0, "ok")])
def test_the_processes_of_a_check_end_with_it(hangs, seconds, result, tmp_path, monkeypatch):
    child = tmp_path / "child"
    monkeypatch.setattr(runner, "write_outcome", partial(start_child, child=child, hangs=hangs))

    found = run_to_its_end(runner.Running(check(), request_of("cpu"), seconds))

    assert found.result == result
    assert ("within 3 s" in found.reason) is hangs
    assert_is_gone(int(child.read_text()))


def test_a_process_without_an_outcome_is_a_failure():
    found = run_to_its_end(runner.Running(check(name="unknown"), request_of("cpu"), 60.0))

    assert found.result == "failed"
    assert "UsageError" in found.reason


def test_a_check_that_is_late_shows_the_errors_of_its_commands(tmp_path, monkeypatch):
    def wait_for_a_command(_name, context, _file):
        context.folder.with_name("command-0.err").write_text("rank 1 waits\n")
        time.sleep(600)

    monkeypatch.setattr(runner, "write_outcome", wait_for_a_command)

    assert "rank 1 waits" in run_to_its_end(runner.Running(check(), request_of("cpu"), 1.0)).reason


def test_a_fork_has_its_folder_its_variables_and_its_exit_code(tmp_path):
    def act():
        print(Path.cwd(), os.environ["CHECKED"])
        sys.exit(7)

    variables = {"CHECKED": "here"}
    ended = forks.start(act, tmp_path / "log", folder=tmp_path, variables=variables).wait()

    assert (ended.code, ended.out, ended.err) == (7, f"{tmp_path} here\n", "")


def test_a_driver_that_crashes_torch_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(devices, "find", lambda _: os.kill(os.getpid(), 9))
    with pytest.raises(UsageError, match="-9"):
        devices.found()


@pytest.mark.parametrize(
    ("results", "code"),
    [
        (["ok", "skipped"], 0),
        (["ok", "failed"], 1),
        (["ok", "not run"], 1),
        (["skipped"], 3),
        ([], 3),
    ],
)
def test_the_exit_code_follows_from_the_results(results, code):
    assert exit_code([Outcome(name="c", result=one) for one in results]) == code


def test_names_select_checks_in_their_order():
    assert [one.name for one in selected("watchdog,memory")] == ["watchdog", "memory"]
    assert selected("") == list(CHECKS)
    with pytest.raises(UsageError):
        selected("memory,nonsense")


def test_names_are_unique_and_each_check_has_its_function():
    assert len({one.name for one in CHECKS}) == len(CHECKS)
    assert all(callable(function_of(one.name)) for one in CHECKS)


def test_a_check_without_its_result_fails(tmp_path, monkeypatch):
    context = Context(device=torch.device("cpu"), count=2, shares=False, folder=tmp_path)
    assert outcome("memory", context)["result"] == "ok"

    monkeypatch.setattr("gpu_checks.device_checks.peak_device_bytes", lambda _: 5 << 30)
    assert outcome("memory", context)["result"] == "ok"
    grows = iter([0, 5 << 30, 0])
    monkeypatch.setattr("gpu_checks.device_checks.peak_device_bytes", lambda _: next(grows))
    assert outcome("memory", context)["result"] == "failed"


def test_comparisons_of_different_values_fail():
    assert close([1.01], [1.0], 0.02, "x") == pytest.approx(0.01)
    for found, expected in (([1.1], [1.0]), ([], []), ([1.0], [1.0, 1.0]), ([float("nan")], [1.0])):
        with pytest.raises(AssertionError):
            close(found, expected, 0.02, "x")
    with pytest.raises(AssertionError):
        require(condition=False, text="x")


def test_without_a_gpu_no_check_runs_and_all_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "_machine", lambda _: Machine(versions={}))

    code = program.main(["--json", str(tmp_path / "new" / "gpu.json")])

    assert code == 3
    printed = capsys.readouterr().out
    assert all(one.name in printed for one in CHECKS)
    written = json.loads((tmp_path / "new" / "gpu.json").read_text())
    assert written["exit_code"] == 3
    assert {one["name"] for one in written["checks"]} == {one.name for one in CHECKS}


def test_an_unknown_check_is_a_usage_error(capsys):
    assert program.main(["--only", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_table_has_aligned_columns():
    assert table(("a", "b"), [("long", "x"), ("s", "y")]) == "a     b\nlong  x\ns     y"


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_model_of_the_ranks_fits_its_batch_on_the_meta_device(batch_norm):
    device = torch.device("meta")
    images, labels = batch(device)

    scores = network(batch_norm=batch_norm).to(device)(images)

    assert scores.shape == (len(labels), 4)
    assert by_name("batch-norm").gpus == 2


def test_each_script_exists_and_has_its_check():
    assert all(script.path.is_file() and by_name(name) for name, script in SCRIPTS.items())
    assert set(FOLDER.glob("[a-z]*.py")) <= {script.path for script in SCRIPTS.values()}


def test_each_synchronizer_is_checked_or_listed_for_cpus_only():
    assert {*SYNCHRONIZERS, *ON_CPUS} == replicate.SYNCHRONIZERS.keys()
    assert "flat" in ON_CPUS


@pytest.mark.parametrize(
    ("lines", "is_right"),
    [
        (
            ["Mlp at a.py:1: 5 calls split", "Mlp at a.py:1: 1 call unsplit (fewer samples than workers)"],
            True,
        ),
        (["Mlp at a.py:1: 1 call split", "LSTM at a.py:2: 4 calls unsplit (hx is not contiguous)"], False),
        (["a.py:3: each worker loads all of it"], False),
    ],
)
def test_a_run_without_split_calls_fails_its_check(lines, is_right):
    with nullcontext() if is_right else pytest.raises(AssertionError):
        require_split("".join(f"samestep: {line}\n" for line in lines), "2 GPU ranks")
