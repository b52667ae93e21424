"""Counts the accelerators of this node without opening one.

A process that has opened a device must not be forked, so another process counts them.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from samestep.base.errors import UsageError

_QUESTION = "import torch; print(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)"
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg")
_NOT_HERE = (
    "Torch not compiled with CUDA",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "torch.cuda.is_available() is False",
    "doesn't have NCCL built in",
)
"""Parts of torch's errors of a script that names CUDA devices, where there are none."""


def accelerator_count(dev: Path = Path("/dev")) -> int:
    """Return the number of accelerators that torch finds here; 0 at once if there is no device file."""
    if not can_have_accelerators(dev):
        return 0
    answer = subprocess.run([sys.executable, "-c", _QUESTION], capture_output=True, text=True, check=False)
    words = answer.stdout.split()
    return int(words[-1]) if answer.returncode == 0 and words and words[-1].isdecimal() else 0


def can_have_accelerators(dev: Path = Path("/dev")) -> bool:
    """Return whether this machine can have accelerators: it has a device file, or is not one of Linux."""
    return sys.platform != "linux" or any(any(dev.glob(pattern)) for pattern in _DEVICE_FILES)


def advice_on(message: str) -> str:
    """Return what to do about an error of a script that names a device which is not here; else nothing.

    >>> advice_on("Torch not compiled with CUDA enabled")
    '--device cpu runs a script that names cuda on processors'
    """
    is_missing = any(part in message for part in _NOT_HERE)
    return "--device cpu runs a script that names cuda on processors" if is_missing else ""


def visible_gpus(environment: Mapping[str, str], total: int, chosen: slice) -> dict[str, str]:
    """Return the variables with which a program sees only the `chosen` of `total` GPUs that it sees now.

    ROCm reads CUDA_VISIBLE_DEVICES too, but ignores it if HIP_VISIBLE_DEVICES is set.
    """
    names = [
        "CUDA_VISIBLE_DEVICES",
        *(["HIP_VISIBLE_DEVICES"] if "HIP_VISIBLE_DEVICES" in environment else []),
    ]
    every = ",".join(map(str, range(total)))
    listed = {name: environment.get(name, every).split(",")[chosen] for name in names}
    return {name: ",".join(gpu.strip() for gpu in gpus) for name, gpus in listed.items()}


def only_first_gpus(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """Return the variables with which a program sees at most `count` of the GPUs that it sees now.

    >>> only_first_gpus({"CUDA_VISIBLE_DEVICES": "4,5,6"}, 2), only_first_gpus({}, 2)
    ({'CUDA_VISIBLE_DEVICES': '4,5'}, {'CUDA_VISIBLE_DEVICES': '0,1'})
    """
    return visible_gpus(environment, count, slice(count))


def driver_is_open(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Return whether this process has called the CUDA driver, of which torch itself may have no trace.

    Its device file of unified memory is opened by the driver, and not by the library that lists GPUs.
    """
    for descriptor in descriptors.iterdir() if descriptors.exists() else ():
        with suppress(OSError):  # the descriptor of this listing is closed at its end
            if os.readlink(descriptor) == "/dev/nvidia-uvm":  # noqa: PTH115 - `Path.readlink` is slower
                return True
    return False


def workers_per_node(text: str, *, cpus: int, accelerators: int | None = None) -> int:
    """Parse ``--nproc-per-node``: a number, ``gpu`` (one per accelerator), ``cpu``, or ``auto``.

    `cpus` are processors that this node can use; accelerators are counted if None and needed.

    Raises:
        UsageError: the value is none of these, or ``gpu`` on a node without one.
    """
    if text == "cpu":
        return cpus
    if text in ("gpu", "auto"):
        count = accelerator_count() if accelerators is None else accelerators
        if not count and text == "gpu":
            raise UsageError(
                "--nproc-per-node gpu: torch finds no accelerator on this node. Give a number, or cpu."
            )
        return count or cpus
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"--nproc-per-node {text!r} is neither a number nor one of gpu, cpu, auto."
        ) from None
