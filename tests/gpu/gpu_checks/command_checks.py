"""Runs commands of samestep on the GPUs, and checks what they compute and report.

Two ranks run on two devices, or both on one.
"""

import json
import time
from pathlib import Path
from typing import Any
from unittest import SkipTest

from gpu_checks.context import (
    Context,
    Figures,
    command,
    last_lines,
    require,
    succeeded,
    user_script,
    wait,
)
from gpu_checks.forks import Fork
from gpu_checks.scripts_table import SERIAL
from samestep.ranks.world.device import BACKENDS

_RANKS = Path(__file__).with_name("rank_script.py")
_SPAWNS = Path(__file__).with_name("spawn_script.py")
_HANG_S = 8
_FIGURES = "figures.json"


def doctor(context: Context) -> Figures:
    """Compare the device that ``samestep doctor`` reports, and list its findings."""
    report = _report(context)
    facts = report["ranks"][0]
    require(context.device.type in json.dumps(facts), f"doctor does not report {context.device.type}")
    if context.device.type == "cuda":
        listed = len(facts["gpus"])  # by nvidia-smi: none for ROCm, and hidden GPUs too
        require(not listed or listed >= context.count, f"doctor lists {listed} of {context.count} GPUs")
    findings = [one["text"] for one in report["findings"]]
    return {"findings": len(findings), "texts": findings}


def doctor_copies(context: Context) -> Figures:
    """Check that doctor copied between all pairs of GPUs, in both directions, and that no value is wrong."""
    copies = _report(context)["ranks"][0]["gpu_copies"]
    pairs = context.count * (context.count - 1)
    require(len(copies) == pairs, f"{len(copies)} copies, expected {pairs}")
    wrong = [one for one in copies if one["wrong"]]
    require(not wrong, f"copies arrive wrong: {wrong}")
    return {"pairs": pairs}


def _report(context: Context) -> dict[str, Any]:
    ended = wait(command(context, "doctor", "--json", on_cpu=context.is_cpu))
    require(ended.code in (0, 1), f"exit code {ended.code}: {last_lines(ended.err)}")
    report: dict[str, Any] = json.loads(ended.out)
    return report


def verify_on_cpu(context: Context) -> Figures:
    """Verify a script for GPUs on two CPU ranks."""
    return _verified(context, "--device", "cpu")


def verify(context: Context) -> Figures:
    """Verify a script on one and on two GPUs."""
    return _verified(context)


def spawned(context: Context) -> Figures:
    """Run a script that starts its own workers, one per GPU."""
    count = min(2, context.count)
    words = (user_script(context, _SPAWNS), count, context.device.type)
    ended = succeeded(command(context, "run", "-n", count, *words))
    expected = f"sum {count * (count + 1) // 2}"
    require(expected in ended.out.splitlines(), f"{expected!r} is missing in {last_lines(ended.out)}")
    return {"workers": count}


def _verified(context: Context, *flags: str) -> Figures:
    script = user_script(context, SERIAL)
    ended = wait(command(context, "verify", script, "-n", "1,2", "--json", *flags, "--", "cuda-method"))
    require(ended.code == 0, f"exit code {ended.code}: {last_lines(ended.err or ended.out)}")
    return {"verdict": json.loads(ended.out)["verdict"]}


def figures(context: Context, task: str) -> Figures:
    """Run a task of the script that compares results itself, and return its figures."""
    succeeded(_started(context, task))
    return _written(context)


def sanitize(context: Context) -> Figures:
    """Run a script with its own process group under ``--sanitize``, which reports nothing."""
    ended = succeeded(_started(context, "adopted", "--sanitize"))
    require("warning" not in ended.err, f"equal ranks are reported: {last_lines(ended.err)}")
    return _written(context)


def watchdog(context: Context) -> Figures:
    """Check that a rank whose kernel does not end is named, and that the run ends."""
    if context.device.type == "xpu":
        raise SkipTest("torch has no kernel of any length for xpu")
    began = time.monotonic()
    ended = wait(_started(context, "hang", "--hang-timeout", _HANG_S))
    took = time.monotonic() - began
    require(ended.code not in (0, 2), f"exit code {ended.code}: {last_lines(ended.err)}")
    require("rank 1" in ended.err, f"rank 1 is not named: {last_lines(ended.err)}")
    require(took >= _HANG_S, f"the run ended after {took:.1f} s, before its timeout: {last_lines(ended.err)}")
    return {"seconds": took, "exit code": ended.code}


def one_gpu_refused(context: Context) -> Figures:
    """Check that two ranks with NCCL on one GPU end with the reason."""
    ended = wait(_started(context, "synchronizers", shares=False))
    require(ended.code != 0, "two ranks trained on one GPU over NCCL")
    require("same device" in ended.err, f"the reason is missing: {last_lines(ended.err)}")
    return {"exit code": ended.code}


def _written(context: Context) -> Figures:
    written: Figures = json.loads((context.folder / _FIGURES).read_text())
    return written


def _started(context: Context, task: str, *flags: object, shares: bool | None = None) -> Fork:
    """Start a task on two ranks; `shares` is whether they may share a GPU, None for what the check allows."""
    kind = context.device.type
    words = (user_script(context, _RANKS), task, kind, BACKENDS[kind], context.folder / _FIGURES)
    return command(context, "run", "-n", 2, *flags, *words, on_cpu=context.is_cpu, shares=shares)
