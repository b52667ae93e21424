"""Runs serial scripts for one GPU on it, on several GPUs, and on CPUs, and compares the losses."""

from pathlib import Path
from unittest import SkipTest

from samestep.testing.gpu.context import Context, Ended, Figures, close, command, python

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
    """Run a script with a captured graph."""
    return _compared(context, "graphs", on_cpus=False)


def _compared(context: Context, feature: str, *, tolerance: float = 1e-3, on_cpus: bool = True) -> Figures:
    """Return the largest differences from the script run by Python alone on the first GPU.

    Args:
        context: the devices.
        feature: argument of the script.
        tolerance: largest relative difference of a loss.
        on_cpus: whether the script also runs on two CPU ranks.
    """
    if context.is_cpu:
        expected = _losses(command(context, "run", "-n", 1, "--device", "cpu", SCRIPT, feature))
    else:
        expected = _losses(python(context, SCRIPT, feature))
    runs: dict[str, tuple[object, ...]] = {}
    if on_cpus:
        runs["2 CPU ranks"] = ("-n", 2, "--device", "cpu")
    if not context.is_cpu:
        runs["1 GPU" if context.count == 1 else "2 GPUs"] = ("-n", min(2, context.count))
    return {
        name: close(_losses(command(context, "run", *flags, SCRIPT, feature)), expected, tolerance, name)
        for name, flags in runs.items()
    }


def _losses(ended: Ended) -> list[float]:
    lines = ended.succeeded().out.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]
