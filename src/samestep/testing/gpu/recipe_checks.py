"""Trains the built-in digits recipe on the device, and compares the losses with those on the CPU."""

import gzip
import json
from functools import partial
from typing import Any
from unittest import SkipTest

from samestep.testing.gpu.context import Context, Figures, at_once, close, command, require, rows

_STEPS = 12
_SHORT = ("--subset", 384, "--epochs", 2, "--batch-size", 64)
"""Options of a run of `_STEPS` steps."""
_FIRST = 3
"""Steps whose losses are compared one by one; rounding grows later."""


def fp32(context: Context) -> Figures:
    """Compare ``--precision fp32``; convolutions use TF32 on GPUs that have it."""
    return _against_cpu(context, "fp32", first=5e-3, mean=0.1)


def bf16(context: Context) -> Figures:
    """Compare ``--precision bf16``."""
    if not context.is_cpu:
        from samestep.training.loop.precision import machine_has_bf16

        if not machine_has_bf16(context.device):
            raise SkipTest("this GPU has no bfloat16")
    return _against_cpu(context, "bf16", first=3e-2, mean=0.25)


def fp16(context: Context) -> Figures:
    """Compare ``--precision fp16``, with loss scaling; a step that overflows is skipped on both devices."""
    return _against_cpu(context, "fp16", first=1e-2, mean=0.5)


def channels_last(context: Context) -> Figures:
    """Compare ``--channels-last``."""
    return _against_cpu(context, "fp32", "--channels-last", first=5e-3, mean=0.1)


def compile(context: Context) -> Figures:  # noqa: A001 - the option's name
    """Compare ``--compile`` on the device with an uncompiled run on the CPU."""
    try:
        import triton  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise SkipTest("triton is not installed, which torch.compile needs on GPUs") from error
    expected, found = at_once(
        partial(_losses, context, "cpu", on_cpu=True), partial(_losses, context, "device", "--compile")
    )
    return _compared(found, expected, first=5e-3, mean=0.1)


def _against_cpu(context: Context, precision: str, *flags: str, first: float, mean: float) -> Figures:
    wanted = ("--precision", precision, *flags)
    expected, found = at_once(
        partial(_losses, context, "cpu", *wanted, on_cpu=True), partial(_losses, context, "device", *wanted)
    )
    return _compared(found, expected, first=first, mean=mean)


def _compared(found: list[float], expected: list[float], *, first: float, mean: float) -> Figures:
    half = len(found) // 2
    means = [sum(losses[half:]) / len(losses[half:]) for losses in (found, expected)]
    return {
        "first losses": close(found[:_FIRST], expected[:_FIRST], first, "losses of the first steps"),
        "mean loss": close(means[:1], means[1:], mean, "mean loss of the second epoch"),
    }


def _losses(context: Context, name: str, *flags: object, on_cpu: bool = False) -> list[float]:
    trained(context, name, *_SHORT, *flags, on_cpu=on_cpu)
    return [row["loss"] for row in rows(context.folder / name / "metrics.jsonl")]


def trained(context: Context, name: str, *flags: object, on_cpu: bool = False) -> dict[str, Any]:
    """Train the recipe in a folder of this name; return its result."""
    ended = command(context, "train", "digits", "--out", name, "--json", *flags, on_cpu=on_cpu).succeeded()
    device = rows(context.folder / name / "sessions.jsonl")[-1]["device"]
    is_cpu = on_cpu or context.is_cpu
    require((device == "cpu") == is_cpu, f"the run used {device}, expected {'cpu' if is_cpu else 'a GPU'}")
    result: dict[str, Any] = json.loads(ended.out)
    return result


def exact_bits(context: Context) -> Figures:
    """Train twice with ``--exact``, and compare the weights."""
    flags = ("--exact", 4, *_SHORT)
    first, second = (trained(context, name, *flags)["weights_sha256"] for name in ("first", "second"))
    require(first == second, f"the weights of two runs differ: {first} and {second}")
    return {"weights": first[:12]}


def checkpoint_devices(context: Context) -> Figures:
    """Begin a run on the device and finish it on the CPU, and the other way; compare the last losses."""
    flags = (*_SHORT, "--checkpoint-steps", 5, "--clock-steps", 8, "--clock-warm-up", 0)
    ends = {}
    for name, begins_on_cpu in (("from-device", False), ("from-cpu", True)):
        clock = ("--clock", f"{name}-clock")
        command(context, "train", "digits", "--out", name, *flags, *clock, on_cpu=begins_on_cpu).succeeded()
        begun = len(rows(context.folder / name / "metrics.jsonl"))
        command(context, "train", "--resume", name, on_cpu=not begins_on_cpu).succeeded()
        losses = [row["loss"] for row in rows(context.folder / name / "metrics.jsonl")]
        require(begun < len(losses) == _STEPS, f"{begun} steps before the resume, {len(losses)} after it")
        ends[name] = sum(losses[-_FIRST:]) / _FIRST
    close([ends["from-cpu"]], [ends["from-device"]], 0.2, "mean of the last losses")
    return ends


def profile(context: Context) -> Figures:
    """Trace steps, and search the trace for kernels of the device."""
    trained(context, "traced", *_SHORT, "--profile", "4:6")
    files = sorted((context.folder / "traced").rglob("*.json*"))
    traces = [one for one in files if "trace" in one.name or "profile" in str(one.parent)]
    require(traces, f"no trace among {[one.name for one in files]}")
    text = gzip.decompress(traces[0].read_bytes()) if traces[0].suffix == ".gz" else traces[0].read_bytes()
    kernels = text.count(b'"kernel"')
    require(kernels or context.is_cpu, f"{traces[0].name} has no kernel of the device")
    return {"traces": len(traces), "kernels": kernels}
