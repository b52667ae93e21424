"""The runner of the GPU checks skips checks, applies time limits, and writes exit codes and files."""

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest
import torch

from samestep.base.errors import UsageError
from samestep.parallel.gradients import replicate
from samestep.testing.gpu import __main__ as program
from samestep.testing.gpu import devices, runner
from samestep.testing.gpu.context import Context, at_once, close, require
from samestep.testing.gpu.devices import Machine, check_version
from samestep.testing.gpu.one import function_of, outcome
from samestep.testing.gpu.rank_script import ON_CPUS, SYNCHRONIZERS, batch, network
from samestep.testing.gpu.registry import CHECKS, Check, by_name, selected
from samestep.testing.gpu.runner import Outcome, Request, exit_code, reason_to_skip, run_all, run_one, table


def check(**values):
    return Check(**{"name": "c", "function": "device_checks:memory", "shows": "", **values})


def request_of(kind="cuda", count=1, **values):
    return Request(type=kind, count=count, **values)


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


def test_checks_after_the_time_limit_of_all_are_not_run(monkeypatch):
    clock = iter([0.0, 1.0, 9.5])
    limits = []

    def run_for(one, _request, seconds):
        limits.append(seconds)
        return Outcome(name=one.name, result="ok")

    monkeypatch.setattr(runner, "run_one", run_for)
    found = list(run_all([check(seconds=60.0)] * 2, request_of(limit_s=10.0), lambda: next(clock)))

    assert [one.result for one in found] == ["ok", "not run"]
    assert limits == [9.0]


def test_a_check_that_hangs_is_ended_with_its_processes():
    child = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    code = f"import subprocess, sys, time; print(subprocess.Popen({child}).pid, flush=True); time.sleep(600)"

    output, is_late = runner._run([sys.executable, "-c", code], 10.0)

    assert is_late
    with suppress(psutil.NoSuchProcess):
        # The kernel ends a killed process a moment later; a zombie waits for its new parent.
        while psutil.Process(int(output)).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def test_a_process_without_an_outcome_is_a_failure():
    found = run_one(check(name="unknown"), request_of("cpu"), 60.0)

    assert found.result == "failed"
    assert "UsageError" in found.reason


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
    context = Context(device=torch.device("cpu"), count=2, shares=False, folder=tmp_path, seconds=60.0)
    assert outcome("memory", context)["result"] == "ok"

    monkeypatch.setattr("samestep.testing.gpu.device_checks.peak_device_bytes", lambda _: 5 << 30)
    assert outcome("memory", context)["result"] == "ok"
    grows = iter([0, 5 << 30, 0])
    monkeypatch.setattr("samestep.testing.gpu.device_checks.peak_device_bytes", lambda _: next(grows))
    assert outcome("memory", context)["result"] == "failed"


def test_comparisons_of_different_values_fail():
    assert close([1.01], [1.0], 0.02, "x") == pytest.approx(0.01)
    for found, expected in (([1.1], [1.0]), ([], []), ([1.0], [1.0, 1.0]), ([float("nan")], [1.0])):
        with pytest.raises(AssertionError):
            close(found, expected, 0.02, "x")
    with pytest.raises(AssertionError):
        require(condition=False, text="x")


def test_old_versions_of_torch_are_refused():
    check_version("2.6.0+cu124")
    check_version("3.0.1")
    with pytest.raises(UsageError):
        check_version("2.5.1")


def test_without_a_gpu_no_check_runs_and_all_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "_machine", lambda _: Machine(versions={}))

    code = program.main(["--json", str(tmp_path / "new" / "gpu.json")])

    assert code == 3
    printed = capsys.readouterr().out
    assert all(one.name in printed for one in CHECKS)
    written = json.loads((tmp_path / "new" / "gpu.json").read_text())
    assert written["exit_code"] == 3
    assert [one["name"] for one in written["checks"]] == [one.name for one in CHECKS]


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


def test_a_python_without_torch_lists_the_checks(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from samestep.testing.gpu import __main__ as program\n"
        "program.find_spec = lambda _: None\n"
        f"sys.exit(program.main(['--json', {str(tmp_path / 'gpu.json')!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 3, ended.stderr
    assert all(one.name in ended.stdout for one in CHECKS)
    assert json.loads((tmp_path / "gpu.json").read_text())["exit_code"] == 3


def test_a_driver_that_crashes_torch_is_a_usage_error(monkeypatch):
    ended = subprocess.CompletedProcess([], -11, "", "")
    monkeypatch.setattr("samestep.testing.gpu.devices.subprocess.run", lambda *_, **__: ended)
    with pytest.raises(UsageError, match="-11"):
        devices.found()


def test_processes_that_an_ended_check_has_started_are_ended():
    child = "[sys.executable, '-c', 'import time; time.sleep(600)'], stdout=subprocess.DEVNULL"
    code = f"import subprocess, sys; print(subprocess.Popen({child}, stderr=subprocess.DEVNULL).pid)"

    output, is_late = runner._run([sys.executable, "-c", code], 60.0)

    assert not is_late
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(int(output)).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def test_commands_run_at_once_and_return_in_order():
    both = threading.Barrier(2, timeout=60)
    assert at_once(lambda: (both.wait(), "a")[1], lambda: (both.wait(), "b")[1]) == ["a", "b"]


def test_each_synchronizer_is_checked_or_listed_for_cpus_only():
    assert {*SYNCHRONIZERS, *ON_CPUS} == replicate.SYNCHRONIZERS.keys()
    assert "flat" in ON_CPUS
