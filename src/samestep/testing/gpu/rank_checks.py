"""Runs two ranks, on two devices or both on one, and checks what they compute and report."""

import json
import time
from pathlib import Path
from unittest import SkipTest

from samestep.ranks.world.device import BACKENDS
from samestep.testing.gpu.context import Context, Ended, Figures, command, last_lines, require

_SCRIPT = Path(__file__).with_name("rank_script.py")
_HANG_S = 8
_FIGURES = "figures.json"


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
        context, "run", "-n", 2, *flags, _SCRIPT, task, device, backend, file, on_cpu=context.is_cpu
    )
