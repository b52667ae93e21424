"""Every branch for accelerators is listed, with the check that reaches it."""

import ast
import sys
from pathlib import Path

import pytest
from gpu_checks.registry import CHECKS

from support.device_branches import found, uses_accelerator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LISTED = tomllib.loads(Path(__file__).with_name("branches.toml").read_text())


def test_every_function_with_a_branch_for_accelerators_is_listed():
    assert found() == {*LISTED["checks"], *LISTED["cpu"]}


def test_no_function_is_listed_twice():
    assert set(LISTED["checks"]) & set(LISTED["cpu"]) == set()


def test_the_listed_checks_exist_and_reach_an_accelerator():
    assert set(LISTED["checks"].values()) <= {one.name for one in CHECKS}


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.synchronize()",
        "torch.accelerator.is_available()",
        "torch.Event(device)",
        "torch.get_device_module(device)",
        "torch.backends.cudnn.flags()",
        "from torch.cuda import nccl",
        "DataLoader(data, pin_memory=True)",
        "device.type == 'cuda'",
        "tensor.device.type in PINNED",
        "kind in {'cuda', 'xpu'}",
        "names.get(world.device.type)",
        "[getattr(torch, name) for name in ('cuda', 'xpu')]",
        "torch.random.fork_rng(devices)",
        "torch.autocast(device)",
        "x.to(device, non_blocking=True)",
    ],
)
def test_a_use_of_an_accelerator_is_found(line):
    assert any(uses_accelerator(node) for node in ast.walk(ast.parse(line)))


def test_other_code_is_no_use_of_an_accelerator():
    lines = "torch.zeros(3)\nmodel.type == 'linear'\ntimes.get('cpus')\nthreading.Event()"

    assert not any(uses_accelerator(node) for node in ast.walk(ast.parse(lines)))
