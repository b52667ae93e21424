"""The checks on GPUs run on the CPU, as far as it can run them, by the command that a user types."""

import json
import os
import subprocess
import sys

import pytest
import torch
from gpu_checks import shared_gpu
from gpu_checks.context import Context, command, environment, succeeded
from gpu_checks.registry import selected
from gpu_checks.scripts_table import SCRIPTS

from samestep.ranks.rendezvous.handshake import shared_device
from support import host_cuda

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
NAMES = "device-facts,random-state,staging,forking,doctor-copies"


@pytest.mark.timeout(300)
def test_checks_run_on_the_cpu(tmp_path):
    file = tmp_path / "gpu.json"
    ended = subprocess.run(
        [sys.executable, "-m", "gpu_checks", "--device", "cpu", "--only", NAMES, "--json", file],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(file.read_text())
    results = {one["name"]: one["result"] for one in found["checks"]}
    assert results == {**dict.fromkeys(NAMES.split(","), "ok"), "doctor-copies": "skipped"}
    assert found["machine"]["type"] == "cpu"


ON_HOST = (
    *(
        "autopilot-cuda-method",
        "autopilot-dropout",
        "script-images",
        "script-lstm",
        "split-packed",
        "split-switched",
    ),
    *("device-copies", "loader", "memory", "recipe-fp16", "checkpoint-devices", "exact-ranks"),
)
NOT_ON_HOST = frozenset(
    {
        *(
            "autopilot-compile",
            "recipe-compile",
            "autopilot-graphs",
            "clock-graphs",
            "one-gpu-refused",
            "spawned",
        ),
        *(
            "profile",
            "clock-events",
            "clock-run",
            "waiting",
            "watchdog",
            "batch-norm",
            "split-sparse",
            "doctor-copies",
        ),
    }
)
"""Checks of what that device has not: compiled kernels, graphs, a queue, NCCL, kernels of SyncBatchNorm."""


@pytest.mark.parametrize("names", [ON_HOST, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_checks_pass_on_a_device_in_host_memory(tmp_path, names):
    """Only this finds a tensor that stays on the CPU where the device's is needed, without a GPU."""
    if names is None:
        libraries = {name for name, script in SCRIPTS.items() if script.packages}
        names = [check.name for check in selected("") if check.name not in NOT_ON_HOST | libraries]
    file = tmp_path / "gpu.json"
    options = (
        "--device",
        "cuda",
        "--share-gpu",
        "--time-limit",
        "800",
        "--only",
        ",".join(names),
        "--json",
        file,
    )
    ended = subprocess.run(
        [sys.executable, "-m", "gpu_checks", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT | host_cuda.environment(ENVIRONMENT["PYTHONPATH"]),
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = {check["name"]: check["result"] for check in json.loads(file.read_text())["checks"]}
    assert results == dict.fromkeys(names, "ok")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_scripts_on_two_ranks_equal_those_of_python(tmp_path):
    names = [name for name, script in SCRIPTS.items() if script.on_cpu and not script.packages]
    file = tmp_path / "gpu.json"
    options = ("--device", "cpu", "--only", ",".join(names), "--json", file)
    ended = subprocess.run(
        [sys.executable, "-m", "gpu_checks", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    checks = json.loads(file.read_text())["checks"]
    assert {one["name"]: one["result"] for one in checks} == dict.fromkeys(names, "ok")
    assert all("2 CPU ranks" in one["figures"] for one in checks)


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
