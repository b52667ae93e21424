"""A check that fails or hangs is a finding, and the other checks run."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.base.machine.description import machine
from samestep.base.polling import with_timeout
from samestep.doctor import checks as module
from samestep.doctor.checks import CHECKS, THREAD, Check, Options, any_stuck, joining, run_check, run_checks
from samestep.doctor.context import Result, joined, predict
from samestep.launchers.detect import detect
from samestep.ranks.world.device import DeviceFacts
from support import trees
from support.recordings import recording


def here(tmp_path, *, name="single", root=Path("/"), **variables):
    environment = {**recording(name).environment, **variables}
    context = predict(
        environment,
        detect(environment),
        machine(),
        devices=DeviceFacts(),
        available=lambda _: True,
        address_of=lambda _: "10.0.0.1",
    )
    return replace(context, run_folder=tmp_path, root=root)


OWN = [check for check in CHECKS if not check.joint]


def examine(context, checks=OWN):
    return joined(run_check(check, context) for check in checks)


@pytest.fixture
def stuck():
    """Return a check that hangs until the end of the test."""
    release, done = threading.Event(), threading.Event()

    def hang(_=None):
        release.wait()
        done.set()
        return Result()

    yield hang
    release.set()
    done.wait()
    while any_stuck():
        time.sleep(0.001)


def failed_checks(part, checks=OWN):
    """Return the findings about checks that raised an error or took too long."""
    subjects = [f"check of {check.subject} failed" for check in checks]
    return [one.text for one in part.findings if any(subject in one.text for subject in subjects)]


def test_a_failing_check_is_a_finding(tmp_path):
    def fail(_):
        raise RuntimeError("driver says no")

    checks = [Check("a device", fail, 5.0), Check("rest", lambda _: Result(rows=[("a", "b")]), 5.0)]
    part = examine(here(tmp_path), checks)
    (finding,) = part.findings
    assert failed_checks(part, checks) == [finding.text]
    assert "RuntimeError: driver says no" in finding.text
    assert part.rows == [("a", "b")]


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_error_without_a_text_is_a_finding_with_its_type(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module, "facts_here", raising(RuntimeError(text)))
    monkeypatch.setattr(module, "_sum", raising(RuntimeError(text)))
    of_devices = run_checks(recording("single").environment, Options(), checks=()).report.findings
    together = run_check(Check("joining", joining, 5.0), here(tmp_path)).findings
    assert ["RuntimeError(" in finding.text for finding in (of_devices[0][1], *together)] == [True, True]


def test_a_hanging_check_is_a_finding(tmp_path, stuck):
    part = run_check(Check("a file server", stuck, 0.01), here(tmp_path))
    (finding,) = part.findings
    assert "a file server failed: no answer within 0.01 s" in finding.text
    assert any_stuck()


def test_a_thread_is_stuck_after_its_timeout(stuck):
    with pytest.raises(TimeoutError):
        with_timeout(0.01, stuck, name=THREAD)
    assert any_stuck()


def test_the_launcher_is_reported_with_the_variables_that_decided(tmp_path):
    part = run_check(OWN[0], here(tmp_path, name="slurm_step_2x2_rank3"))
    rows = dict(part.rows)
    assert rows["place"] == "rank 3 of 4 (local rank 1 of 2 on node 1 of 2)"
    assert rows["back end"] == "gloo (which carries tensors of device cpu; nccl for cuda, xccl for xpu)"
    assert rows["because"].startswith("SLURM_")
    assert part.facts["backend"] == "gloo"


def test_all_checks_work_on_this_machine(tmp_path):
    part = examine(here(tmp_path))
    assert failed_checks(part) == []
    assert {"place", "versions", "interface", "shared mem", "run folder"} <= {n for n, _ in part.rows}


def test_all_checks_work_without_system_files(tmp_path):
    part = examine(here(tmp_path, root=tmp_path / "nothing"), OWN[:-2])
    assert failed_checks(part) == []


def test_the_ports_of_an_eight_gpu_node_are_shown_and_missing_addresses_reported(tmp_path):
    """Gloo between two such nodes: eight active ports, none of which has an IP address."""
    root = trees.planted(tmp_path, {**trees.two_sockets_with_eight_gpus(), **trees.limits()})
    part = examine(here(tmp_path, name="slurm_step_2x2_rank3", root=root), OWN[2:4])
    texts = [finding.text for finding in part.findings]
    assert len([row for row in part.rows if "mlx5_" in row[1]]) == 8
    assert any(
        "mlx5_0:1 is active (200 Gb/sec (4X HDR)), but ib0 has no IP address" in text for text in texts
    )


def test_the_limits_of_a_container_are_reported(tmp_path):
    files = trees.container()
    files["proc/self/mountinfo"] = files["proc/self/mountinfo"].format(group=tmp_path / "sys/fs/cgroup")
    root = trees.planted(tmp_path, {**files, "sys/fs/cgroup/pids.max": "max", "dev/shm/x": ""})
    part = examine(here(tmp_path, root=root), [OWN[3]])
    assert any("A process may have 1024 open files" in finding.text for finding in part.findings)


def test_an_unknown_device_has_no_row(tmp_path):
    seen = here(tmp_path)
    seen = replace(seen, devices=None, choice=None)
    assert "device" not in dict(run_check(OWN[0], seen).rows)
