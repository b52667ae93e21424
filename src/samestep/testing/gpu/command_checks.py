"""Runs commands of samestep on the GPUs, and checks what they compute and report.

Serial scripts for one GPU run on it, on several GPUs, and on CPUs; two ranks run on two devices, or both on
one.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

from samestep.ranks.world.device import BACKENDS
from samestep.testing.gpu.context import (
    Context,
    Ended,
    Figures,
    at_once,
    close,
    command,
    last_lines,
    python,
    require,
    skip_without_triton,
)

_RANKS = Path(__file__).with_name("rank_script.py")
_SPAWNS = Path(__file__).with_name("spawn_script.py")
SCRIPT = Path(__file__).with_name("serial_script.py")
_TOLERANCES: Mapping[str, float] = {"autocast": 3e-2}
"""Largest relative difference of a loss, by feature: kernels of two devices round bfloat16 differently."""
_NOT_ON_CPUS = ("dropout", "compile", "graphs")
"""Features that only GPUs have, or whose numbers are those of the device."""
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


def figures(context: Context, task: str) -> Figures:
    """Run a task of the script that compares results itself, and return its figures."""
    _started(context, task).succeeded()
    return _written(context)


def sanitize(context: Context) -> Figures:
    """Run a script with its own process group under ``--sanitize``, which reports nothing."""
    ended = _started(context, "adopted", "--sanitize").succeeded()
    require("warning" not in ended.err, f"equal ranks are reported: {last_lines(ended.err)}")
    return _written(context)


def watchdog(context: Context) -> Figures:
    """Check that a rank whose kernel does not end is named, and that the run ends."""
    if context.device.type == "xpu":
        raise SkipTest("torch has no kernel of any length for xpu")
    began = time.monotonic()
    ended = _started(context, "hang", "--hang-timeout", _HANG_S)
    took = time.monotonic() - began
    require(ended.code not in (0, 2), f"exit code {ended.code}: {last_lines(ended.err)}")
    require("rank 1" in ended.err, f"rank 1 is not named: {last_lines(ended.err)}")
    require(took >= _HANG_S, f"the run ended after {took:.1f} s, before its timeout: {last_lines(ended.err)}")
    return {"seconds": took, "exit code": ended.code}


def data_parallel(context: Context) -> Figures:
    """Run the benchmark of torch's DataParallel, which one process feeds all GPUs with."""
    if context.device.type != "cuda":
        raise SkipTest("it is measured on GPUs of type cuda only")
    ended = command(
        context, "bench", "step", "-n", 2, "--sync", "data_parallel,ddp", "--json", "--seconds", 5
    ).succeeded()
    require("data_parallel" in ended.out, f"data_parallel is not measured: {last_lines(ended.out)}")
    return {"measured": "data_parallel"}


def one_gpu_refused(context: Context) -> Figures:
    """Check that two ranks with NCCL on one GPU end with the reason."""
    ended = _started(context, "synchronizers", backend="nccl")
    require(ended.code != 0, "two ranks trained on one GPU over NCCL")
    require("same device" in ended.err, f"the reason is missing: {last_lines(ended.err)}")
    return {"exit code": ended.code}


def _written(context: Context) -> Figures:
    written: Figures = json.loads((context.folder / _FIGURES).read_text())
    return written


def _started(context: Context, task: str, *flags: object, backend: str = "") -> Ended:
    """Run a task on two ranks: on two devices with their back end, or on one with Gloo."""
    kind = context.device.type
    shared = context.count < 2
    device = f"{kind}:0" if shared else kind
    backend = backend or ("gloo" if shared else BACKENDS[kind])
    file = context.folder / _FIGURES
    return command(
        context, "run", "-n", 2, *flags, _RANKS, task, device, backend, file, on_cpu=context.is_cpu
    )


def graphs(context: Context) -> Figures:
    """Run a script with a captured graph; several ranks refuse the capture, with the reason."""
    if context.count < 2:
        return compared(context, "graphs")
    ended = command(context, "run", "-n", 2, SCRIPT, "graphs")
    require(ended.code != 0, "two ranks have captured a split call")
    require("CUDA graph" in ended.err, f"the reason is missing: {last_lines(ended.err)}")
    alone = compared(replace(context, count=1), "graphs")
    return {**alone, "exit code of 2 ranks": ended.code}


def compared(context: Context, feature: str) -> Figures:
    """Return the largest differences of losses from the script run by Python alone on the first GPU.

    The script also runs on two CPU ranks if its `feature`, its argument, allows that.
    """
    if feature == "compile":
        skip_without_triton()
    runs: dict[str, tuple[object, ...]] = {}
    if feature not in _NOT_ON_CPUS:
        runs["2 CPU ranks"] = ("-n", 2, "--device", "cpu")
    if not context.is_cpu:
        runs["1 GPU" if context.count == 1 else "2 GPUs"] = ("-n", min(2, context.count))

    def alone() -> Ended:
        if context.is_cpu:
            return command(context, "run", "-n", 1, "--device", "cpu", SCRIPT, feature)
        return python(context, SCRIPT, feature)

    ranks = [partial(command, context, "run", *flags, SCRIPT, feature) for flags in runs.values()]
    expected, *found = map(_losses, at_once(alone, *ranks))
    tolerance = _TOLERANCES.get(feature, 1e-3)
    return {name: close(losses, expected, tolerance, name) for name, losses in zip(runs, found, strict=True)}


def _losses(ended: Ended) -> list[float]:
    lines = ended.succeeded().out.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]
