"""benchmarks/gpu.py runs on the CPU in a tiny size, which tests its code without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_checks.context import environment

ENVIRONMENT = {**os.environ, **environment()}
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_gpu_benchmark_runs_on_the_cpu(tmp_path):
    file = tmp_path / "figures.json"
    only = "steps,steps-of-ranks,clock,cifar10-94,mnist"
    command = [sys.executable, BENCHMARK, "--rehearse", "--only", only, "--json", file]

    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(file.read_text())["measurements"]
    assert list(figures) == only.split(",")
    assert {"trainer_s", "by_hand_s", "ddp_s", "over_ddp"} <= figures["steps"].keys()
    assert {row["sync"] for row in figures["steps-of-ranks"]["rows"]} >= {"bucketed", "ddp"}
    assert {"watchdog_over_plain", "clock_over_plain"} <= figures["clock"].keys()
    assert figures["cifar10-94"]["seconds_to_target"] > 0
    assert 0 <= figures["mnist"]["loader_share"] < 1


def test_without_a_gpu_nothing_is_measured(tmp_path):
    command = [sys.executable, BENCHMARK, "--json", tmp_path / "figures.json"]
    hidden = ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""}

    ended = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)

    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "No GPU is here" in ended.stdout
    assert not (tmp_path / "figures.json").exists()
