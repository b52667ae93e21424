"""Runs serial scripts for one GPU on it, on several GPUs, and on CPUs, and compares the losses."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

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

SCRIPT = Path(__file__).with_name("serial_script.py")
_TOLERANCES: Mapping[str, float] = {"autocast": 3e-2}
"""Largest relative difference of a loss, by feature: kernels of two devices round bfloat16 differently."""
_NOT_ON_CPUS = ("dropout", "compile", "graphs")
"""Features that only GPUs have, or whose numbers are those of the device."""


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
