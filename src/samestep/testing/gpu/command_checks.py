"""Checks what commands of samestep report of the GPUs."""

import json
from pathlib import Path
from typing import Any

from samestep.testing.gpu.autopilot_checks import SCRIPT
from samestep.testing.gpu.context import Context, Figures, command, last_lines, require

_SPAWNS = Path(__file__).with_name("spawn_script.py")


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
    ended = command(context, "doctor", "--json", on_cpu=context.is_cpu)
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
    ended = command(context, "run", "-n", count, _SPAWNS, count, context.device.type).succeeded()
    expected = f"sum {count * (count + 1) // 2}"
    require(expected in ended.out.splitlines(), f"{expected!r} is missing in {last_lines(ended.out)}")
    return {"workers": count}


def _verified(context: Context, *flags: str) -> Figures:
    ended = command(context, "verify", SCRIPT, "-n", "1,2", "--json", *flags, "--", "cuda-method")
    require(ended.code == 0, f"exit code {ended.code}: {last_lines(ended.err or ended.out)}")
    return {"verdict": json.loads(ended.out)["verdict"]}
