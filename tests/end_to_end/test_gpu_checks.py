"""The checks on GPUs run on the CPU, as far as it can run them, by the command that a user types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_checks import shared_gpu
from gpu_checks.context import Context, command, environment, succeeded
from gpu_checks.registry import selected
from gpu_checks.scripts_table import SCRIPTS

from samestep.autopilot.helpers.main_calls import ON_DEVICE
from samestep.ranks.rendezvous.handshake import shared_device
from support import host_cuda
from support.systems import missing

SHARING = """
import json, os, samestep
from samestep.ranks.rendezvous.handshake import shared_device
with samestep.join(device="cpu") as world:
    found = {name: os.environ.get(name) for name in ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_SHM_DISABLE")}
    found["refusal"] = shared_device("nccl", ["GPU-1", "GPU-1"])
    open(f"rank-{world.place.rank}.json", "w").write(json.dumps(found))
"""
"""A script whose ranks record the variables that let them share a GPU, and the error text if they may not."""
ENVIRONMENT = {**os.environ, **environment()}
FRAMEWORKS = Path(__file__).parents[2] / ".venv-frameworks/bin/python"
ON_HOST = {
    *("autopilot-dropout", "script-images", "split-packed", "split-switched", "split-beside-cpu"),
    "checkpoint-devices",
}
NOT_ON_HOST = {
    *("autopilot-compile", "recipe-compile", "autopilot-graphs", "clock-graphs", "clock-events", "clock-run"),
    *("profile", "waiting", "watchdog", "one-gpu-refused", "spawned", "batch-norm", "split-sparse"),
    "doctor-copies",
}
"""Checks of what that device has not: compilers, graphs, a queue, NCCL, the kernels of SyncBatchNorm."""


def checked(folder, names, device, *options, python=sys.executable, **variables):
    """Run checks; return the file of their results."""
    file = folder / "gpu.json"
    words = ("--device", device, "--only", ",".join(names), "--json", file, *options)
    ended = subprocess.run(
        [python, "-m", "gpu_checks", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=ENVIRONMENT | variables,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(file.read_text())


def results(found):
    return {check["name"]: check["result"] for check in found["checks"]}


@pytest.mark.timeout(600)
def test_checks_run_on_the_cpu(tmp_path):
    names = ("device-facts", "random-state", "staging", "forking", "doctor-copies")

    found = checked(tmp_path, names, "cpu")

    assert results(found) == {**dict.fromkeys(names, "ok"), "doctor-copies": "skipped"}
    assert found["machine"]["type"] == "cpu"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_scripts_on_two_ranks_equal_those_of_python(tmp_path):
    names = [name for name, script in SCRIPTS.items() if script.on_cpu and not script.packages]

    found = checked(tmp_path, names, "cpu")

    assert results(found) == dict.fromkeys(names, "ok")
    assert all("2 CPU ranks" in check["figures"] for check in found["checks"])


@pytest.mark.parametrize(
    "extent", ["some", *(pytest.param(extent, marks=pytest.mark.long) for extent in ("all", "libraries"))]
)
@pytest.mark.timeout(900)
def test_checks_pass_on_a_device_in_host_memory(tmp_path, extent):
    """Only this finds, without a GPU, a tensor that stays on the CPU where the device's is needed."""
    libraries, python = {name for name, script in SCRIPTS.items() if script.packages}, sys.executable
    names = ON_HOST if extent == "some" else libraries
    if extent == "all":
        names = {check.name for check in selected("")} - NOT_ON_HOST - libraries
    if extent == "libraries":
        python = FRAMEWORKS if FRAMEWORKS.exists() else missing("frameworks", f"{FRAMEWORKS} is missing")
    variables = host_cuda.environment(ENVIRONMENT["PYTHONPATH"])

    found = checked(tmp_path, names, "cuda", "--share-gpu", "--time-limit", "800", python=python, **variables)

    assert results(found) == dict.fromkeys(names, "ok")


WITHIN = """
import torch, samestep
from torch import nn
model = nn.Linear(4, 2).cuda()
with samestep.workers(2):
    for _ in range(3):
        model(torch.ones(8, 4, device="cuda")).sum().backward()
"""


def test_workers_of_a_process_leave_a_device_to_it(tmp_path):
    """Their check failed within torch, and its error was the reason."""
    variables = ENVIRONMENT | host_cuda.environment(ENVIRONMENT["PYTHONPATH"])
    ended = subprocess.run([sys.executable, "-c", WITHIN], capture_output=True, text=True, env=variables)
    assert ended.returncode == 0, ended.stderr
    assert f"3 calls unsplit ({ON_DEVICE})" in ended.stderr


@pytest.mark.parametrize("shares", [True, False])
def test_ranks_share_a_gpu_in_a_check_that_allows_it_only(shares, tmp_path):
    script = tmp_path / "sharing.py"
    script.write_text(SHARING)
    context = Context(device=torch.device("cpu"), count=2, shares=shares, folder=tmp_path)

    succeeded(command(context, "run", "-n", 2, script))

    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    variables = {"NCCL_SOCKET_IFNAME", "NCCL_SHM_DISABLE"}
    if shares:
        assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
        assert all(one[name] == shared_gpu.VARIABLES[name] for one in (first, second) for name in variables)
        assert first["refusal"] is second["refusal"] is None
    else:
        assert not any(one[name] for one in (first, second) for name in {*variables, "NCCL_HOSTID"})
        assert "same device" in first["refusal"]
    assert "same device" in shared_device("nccl", ["GPU-1", "GPU-1"])  # in the process of the checks
