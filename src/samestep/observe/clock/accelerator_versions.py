"""Reads the versions of the accelerator software below torch."""

from pathlib import Path

_DRIVER = Path("/sys/module/nvidia/version")


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
    try:
        return file.read_text().strip() if device_type == "cuda" else ""
    except OSError:
        return ""
