"""Trains the built-in digits recipe on the device, and compares the losses with those on the CPU."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

from gpu_checks.context import (
    Context,
    Figures,
    close,
    command,
    require,
    rows,
    skip_without_triton,
    succeeded,
)
from gpu_checks.forks import Fork

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


@dataclass(frozen=True, slots=True)
class Training:
    """A training that was started, with its folder."""

    context: Context
    name: str
    is_on_cpu: bool
    process: Fork

    def result(self) -> dict[str, Any]:
        """Return the result, at the end."""
        ended = succeeded(self.process)
        device = self._rows("sessions")[-1]["device"]
        place = "cpu" if self.is_on_cpu else "a GPU"
        require((device == "cpu") == self.is_on_cpu, f"the run used {device}, expected {place}")
        result: dict[str, Any] = json.loads(ended.out)
        return result

    def losses(self) -> list[float]:
        """Return the loss of each step, at the end."""
        self.result()
        return [row["loss"] for row in self._rows("metrics")]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return rows(self.context.folder / self.name / f"{name}.jsonl")


def compile(context: Context) -> Figures:  # noqa: A001 - the option's name
    """Compare ``--compile`` on the device with an uncompiled run on the CPU."""
    skip_without_triton()
    expected, found = _on_cpu(context), train(context, "device", "--compile")
    return _compared(found.losses(), expected.losses(), "fp32")


def against_cpu(context: Context, precision: str, *flags: str) -> Figures:
    """Compare the losses with those on the CPU, where both runs have this precision and these flags."""
    wanted = ("--precision", precision, *flags)
    expected, found = _on_cpu(context, *wanted), train(context, "device", *wanted)
    if precision == "bf16" and not context.is_cpu:  # both runs are forked, so this process may open it
        from samestep.training.loop.precision import machine_has_bf16

        if not machine_has_bf16(context.device):
            raise SkipTest("this GPU has no bfloat16")
    return _compared(found.losses(), expected.losses(), precision)


def train(context: Context, name: str, *flags: object, on_cpu: bool = False) -> Training:
    """Start to train the recipe in a folder of this name."""
    process = command(context, "train", "digits", "--out", name, "--json", *_SHORT, *flags, on_cpu=on_cpu)
    return Training(context, name, on_cpu or context.is_cpu, process)


def _on_cpu(context: Context, *flags: object) -> Training:
    return train(context, "cpu", *flags, on_cpu=True)


def _compared(found: list[float], expected: list[float], precision: str) -> Figures:
    first, mean = _TOLERANCES[precision]
    half = len(found) // 2
    means = [sum(losses[half:]) / len(losses[half:]) for losses in (found, expected)]
    return {
        "first losses": close(found[:_FIRST], expected[:_FIRST], first, "losses of the first steps"),
        "mean loss": close(means[:1], means[1:], mean, "mean loss of the second epoch"),
    }


def exact_bits(context: Context) -> Figures:
    """Train twice with ``--exact``, and compare the weights."""
    runs = [train(context, name, "--exact", 4) for name in ("first", "second")]
    first, second = (run.result()["weights_sha256"] for run in runs)
    require(first == second, f"the weights of two runs differ: {first} and {second}")
    return {"weights": first[:12]}


def checkpoint_devices(context: Context) -> Figures:
    """Begin a run on the device and finish it on the CPU, and the other way; compare the last losses."""
    flags = (*_SHORT, "--checkpoint-steps", 5, "--clock-steps", 8, "--clock-warm-up", 0)
    ends = {}
    for name, begins_on_cpu in (("from-device", False), ("from-cpu", True)):
        clock = ("--clock", f"{name}-clock")
        succeeded(command(context, "train", "digits", "--out", name, *flags, *clock, on_cpu=begins_on_cpu))
        begun = len(rows(context.folder / name / "metrics.jsonl"))
        succeeded(command(context, "train", "--resume", name, on_cpu=not begins_on_cpu))
        losses = [row["loss"] for row in rows(context.folder / name / "metrics.jsonl")]
        require(begun < len(losses) == _STEPS, f"{begun} steps before the resume, {len(losses)} after it")
        ends[name] = sum(losses[-_FIRST:]) / _FIRST
    close([ends["from-cpu"]], [ends["from-device"]], 0.2, "mean of the last losses")
    return ends


def profile(context: Context) -> Figures:
    """Trace steps, and search the trace for kernels of the device."""
    train(context, "traced", "--profile", "4:6").result()
    files = sorted((context.folder / "traced").rglob("*.json*"))
    traces = [one for one in files if "trace" in one.name or "profile" in str(one.parent)]
    require(traces, f"no trace among {[one.name for one in files]}")
    text = gzip.decompress(traces[0].read_bytes()) if traces[0].suffix == ".gz" else traces[0].read_bytes()
    kernels = text.count(b'"kernel"')
    require(kernels or context.is_cpu, f"{traces[0].name} has no kernel of the device")
    return {"traces": len(traces), "kernels": kernels}
