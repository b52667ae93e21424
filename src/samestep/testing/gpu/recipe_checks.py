"""Trains the built-in digits recipe on the device, and compares the losses with those on the CPU."""

import gzip
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from unittest import SkipTest

from samestep.testing.gpu.context import (
    Context,
    Figures,
    at_once,
    close,
    command,
    require,
    rows,
    skip_without_triton,
)

_STEPS = 12
_SHORT = ("--subset", 384, "--epochs", 2, "--batch-size", 64)
"""Options of a run of `_STEPS` steps."""
_FIRST = 3
"""Steps whose losses are compared one by one; rounding grows later."""
_TOLERANCES: Mapping[str, tuple[float, float]] = {
    "fp32": (5e-3, 0.1),
    "bf16": (3e-2, 0.25),
    "fp16": (1e-2, 0.5),
}
"""Largest relative differences of these losses, and of the mean loss of the second epoch, by precision.

With fp32, convolutions use TF32 on GPUs that have it; with fp16, both devices skip steps that overflow.
"""


def compile(context: Context) -> Figures:  # noqa: A001 - the option's name
    """Compare ``--compile`` on the device with an uncompiled run on the CPU."""
    skip_without_triton()
    expected, found = at_once(
        partial(_losses, context, "cpu", on_cpu=True), partial(_losses, context, "device", "--compile")
    )
    return _compared(found, expected, "fp32")


def against_cpu(context: Context, precision: str, *flags: str) -> Figures:
    """Compare the losses with those on the CPU, where both runs have this precision and these flags."""
    if precision == "bf16" and not context.is_cpu:
        from samestep.training.loop.precision import machine_has_bf16

        if not machine_has_bf16(context.device):
            raise SkipTest("this GPU has no bfloat16")
    wanted = ("--precision", precision, *flags)
    expected, found = at_once(
        partial(_losses, context, "cpu", *wanted, on_cpu=True), partial(_losses, context, "device", *wanted)
    )
    return _compared(found, expected, precision)


def _compared(found: list[float], expected: list[float], precision: str) -> Figures:
    first, mean = _TOLERANCES[precision]
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
