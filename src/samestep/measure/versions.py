"""What an accelerator is driven by: versions of what lies below torch."""

from pathlib import Path

_DRIVER = Path("/sys/module/nvidia/version")


def torchs_own(device_type: str) -> dict[str, str]:
    """Return the versions by name of what torch was built with to compute on a device; none for processors.

    Args:
        device_type: torch's name of it, such as ``cuda``.
    """
    if device_type == "cpu":
        return {}
    import torch

    found = {"cuda": torch.version.cuda or "", "hip": torch.version.hip or ""}
    if device_type == "cuda" and found["cuda"] and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        found["nccl"] = ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]
    return {name: version for name, version in found.items() if version}


def driver(device_type: str, file: Path = _DRIVER) -> str:
    """Return the version of the driver of NVIDIA's GPUs; empty for other devices, and where nobody tells.

    Args:
        device_type: torch's name of what is computed on.
        file: where the kernel tells it.
    """
    try:
        return file.read_text().strip() if device_type == "cuda" else ""
    except OSError:
        return ""
