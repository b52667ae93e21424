"""Runs serial scripts for one GPU on it, on several GPUs, and on CPUs, and compares the losses."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import SkipTest

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
)

SCRIPT = Path(__file__).with_name("serial_script.py")


def cuda_method(context: Context) -> Figures:
    """Run a script with ``.cuda()``."""
    return _compared(context, "cuda-method")


def to_device(context: Context) -> Figures:
    """Run a script with ``.to("cuda")``."""
    return _compared(context, "to-device")


def default_device(context: Context) -> Figures:
    """Run a script with ``torch.set_default_device``."""
    return _compared(context, "default-device")


def pinned(context: Context) -> Figures:
    """Run a script with a pinned loader."""
    return _compared(context, "pinned")


def streams(context: Context) -> Figures:
    """Run a script with streams and events."""
    return _compared(context, "streams")


def autocast(context: Context) -> Figures:
    """Run a script with autocast; kernels of two devices round bfloat16 differently."""
    return _compared(context, "autocast", tolerance=3e-2)


def grad_scaler(context: Context) -> Figures:
    """Run a script with a GradScaler."""
    return _compared(context, "grad-scaler")


def dropout(context: Context) -> Figures:
    """Run a script with dropout, whose masks are those of the device."""
    return _compared(context, "dropout", on_cpus=False)


def compile(context: Context) -> Figures:  # noqa: A001 - the feature's name
    """Run a script with ``torch.compile``."""
    try:
        import triton  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise SkipTest("triton is not installed, which torch.compile needs on GPUs") from error
    return _compared(context, "compile", on_cpus=False)


def graphs(context: Context) -> Figures:
    """Run a script with a captured graph; several ranks refuse the capture, with the reason."""
    if context.count < 2:
        return _compared(context, "graphs", on_cpus=False)
    ended = command(context, "run", "-n", 2, SCRIPT, "graphs")
    require(ended.code != 0, "two ranks have captured a split call")
    require("CUDA graph" in ended.err, f"the reason is missing: {last_lines(ended.err)}")
    alone = _compared(replace(context, count=1), "graphs", on_cpus=False)
    return {**alone, "exit code of 2 ranks": ended.code}


def _compared(context: Context, feature: str, *, tolerance: float = 1e-3, on_cpus: bool = True) -> Figures:
    """Return the largest differences from the script run by Python alone on the first GPU.

    Args:
        context: the devices.
        feature: argument of the script.
        tolerance: largest relative difference of a loss.
        on_cpus: whether the script also runs on two CPU ranks.
    """
    runs: dict[str, tuple[object, ...]] = {}
    if on_cpus:
        runs["2 CPU ranks"] = ("-n", 2, "--device", "cpu")
    if not context.is_cpu:
        runs["1 GPU" if context.count == 1 else "2 GPUs"] = ("-n", min(2, context.count))

    def alone() -> Ended:
        if context.is_cpu:
            return command(context, "run", "-n", 1, "--device", "cpu", SCRIPT, feature)
        return python(context, SCRIPT, feature)

    ranks = [partial(command, context, "run", *flags, SCRIPT, feature) for flags in runs.values()]
    expected, *found = map(_losses, at_once(alone, *ranks))
    return {name: close(losses, expected, tolerance, name) for name, losses in zip(runs, found, strict=True)}


def _losses(ended: Ended) -> list[float]:
    lines = ended.succeeded().out.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]
