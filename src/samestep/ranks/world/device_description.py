"""Describes the device of a worker: its name, memory, and the software below torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.base.machine.description import processor
from samestep.base.machine.kernel_files import text_of

if TYPE_CHECKING:
    import torch

_DRIVER = Path("/sys/module/nvidia/version")


def device_name(device: "torch.device") -> str:
    """Return the model of an accelerator, or of the processor for the CPU."""
    if device.type == "cpu":
        return processor()
    name = _call(device, "get_device_name")
    return device.type if name is None else str(name)


def device_id(device: "torch.device") -> str:
    """Return the UUID of an accelerator; empty if it has none."""
    return str(getattr(_call(device, "get_device_properties"), "uuid", ""))


def peak_device_bytes(device: "torch.device") -> int:
    """Return the peak memory of tensors on an accelerator; 0 for the CPU."""
    return int(_call(device, "max_memory_allocated") or 0)


def _call(device: "torch.device", name: str) -> Any:
    """Return the result of a function of ``torch.cuda``, or of another back end; None without it."""
    import torch

    function = getattr(getattr(torch, device.type, None), name, None)
    return None if device.type == "cpu" or function is None else function(device)


def toolkit_versions(device_type: str) -> dict[str, str]:
    """Return the versions of the libraries that torch was built with for a device, by name; none for the CPU.

    Args:
        device_type: torch's name of the device type, such as ``cuda``.
    """
    if device_type == "cpu":
        return {}
    import torch

    found = {"cuda": torch.version.cuda or "", "hip": torch.version.hip or ""}
    if device_type == "cuda" and found["cuda"] and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        found["nccl"] = ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]
    return {name: version for name, version in found.items() if version}


def driver_version(device_type: str, file: Path = _DRIVER) -> str:
    """Return the version of the NVIDIA driver; empty for other devices, and if it is unknown.

    Args:
        device_type: torch's name of the device type.
        file: file in which the kernel module exports its version.
    """
    return text_of(file) if device_type == "cuda" else ""
