"""Chooses and describes the device a rank computes on, and chooses the back end of its messages.

The decisions are functions of facts; only `facts_here` inspects the machine.

=========================  ========================  =========
device                     torch's name              back end
=========================  ========================  =========
CPU                        cpu                       gloo
NVIDIA GPU                 cuda                      nccl
AMD GPU (ROCm)             cuda                      nccl (RCCL)
Intel GPU                  xpu                       xccl
=========================  ========================  =========

Apple's GPUs (mps) have no back end: only a world of one rank can use one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.base.env import Environment
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import visible_gpus
from samestep.base.machine.description import processor
from samestep.base.machine.kernel_files import text_of
from samestep.base.place import Place

if TYPE_CHECKING:
    import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Accelerators visible to this process."""

    kind: str = "cpu"  # torch's name for them; ``cpu`` if there are none
    count: int = 0  # number of visible ones
    uuids: tuple[str, ...] = ()  # UUID of each, in order; empty strings if the driver gives none
    label: str = "cpu"  # common name of the kind, such as ``rocm``


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Device by torch's name, such as ``cuda:1``, with its UUID and the reason for the choice."""

    device: str = "cpu"
    uuid: str = ""
    reason: str = ""

    @property
    def kind(self) -> str:
        """Torch's name of the kind of device."""
        return self.device.partition(":")[0]


def choose_device(facts: DeviceFacts, place: Place, *, asked: str | None = None) -> Choice:
    """Return the device of a rank: the only visible one, or the one with its local rank's number.

    `asked` is ``cpu``, a kind such as ``cuda``, or one device such as ``cuda:1``.

    Raises:
        UsageError: there are too few devices, or the requested one does not exist.
    """
    kind, _, index = (asked or facts.kind).partition(":")
    if kind == "cpu":
        return Choice(reason="as asked" if asked else "no accelerator is visible")
    if kind == "mps" and place.size > 1:
        raise UsageError(
            f"device=mps cannot serve {place.size} ranks: no back end carries its tensors. Use cpu."
        )
    if kind != facts.kind:
        raise UsageError(
            f"device={asked} was asked for, but {place.describe()} sees {facts.count} {facts.label} "
            "device(s) and no such one. Is the right build of torch installed, did the job ask for devices?"
        )
    if index:
        return _asked(facts, place, int(index) if index.isdecimal() else -1)
    if facts.count == 1:
        return _numbered(facts, 0, "the one visible device")
    if facts.count >= place.local_size:
        return _numbered(facts, place.local_rank, f"local rank of {facts.count} visible devices")
    raise UsageError(
        f"{place.local_size} ranks on this host, but {facts.count} visible {facts.label} device(s). "
        "Start one rank per device, show each rank its own (srun --gpus-per-task=1), or ask for device=cpu."
    )


def shown_alone(count: int, environment: Environment, place: Place) -> dict[str, str] | None:
    """Return the variables with which a rank that sees `count` devices sees only its own.

    Returns:
        None if no variable is needed, or if there are too few devices, which `choose_device` refuses.
    """
    if count < 2 or count < place.local_size:
        return None
    return visible_gpus(environment, count, slice(place.local_rank, place.local_rank + 1))


def choose_backend(kind: str, *, asked: str | None, available: Callable[[str], bool]) -> str:
    """Return the back end for a kind of device.

    `asked` is a back end by torch's name. `available` returns whether this build of torch has one.

    Raises:
        UsageError: this build of torch does not have it, or it cannot send such tensors.
    """
    backend = (asked or BACKENDS.get(kind, "")).lower()
    if not backend:
        raise UsageError(f"no back end carries tensors of device {kind!r}. Use one of {', '.join(BACKENDS)}.")
    only = {carrier: carried for carried, carrier in BACKENDS.items() if carrier != "gloo"}
    if only.get(backend, kind) != kind:
        raise UsageError(f"backend={backend} cannot carry {kind} tensors. Use {BACKENDS.get(kind, 'gloo')}.")
    if not available(backend):
        raise UsageError(
            f"this build of torch has no {backend} back end. Install one that has, or pass "
            f"{'device=cpu' if backend == BACKENDS.get(kind) else 'backend=' + BACKENDS.get(kind, 'gloo')}."
        )
    return backend


def backend_name(kind: str, backend: str, *, cpu_tensors: bool) -> str:
    """Return the argument of `init_process_group` for a device's back end.

    With `cpu_tensors`, Gloo carries tensors of the CPU as well. It is named once if it carries both: torch
    gives a group that names Gloo twice no default back end, and warns about that when the group ends.
    """
    is_enough = kind == "cpu" or backend == "gloo" or not cpu_tensors
    return backend if is_enough else f"cpu:gloo,{kind}:{backend}"


def facts_here(asked: str | None = None) -> DeviceFacts:
    """Return the accelerators that torch detects in this process. Opens no device.

    Other kinds than `asked` are not searched for.
    """
    kind = (asked or "").partition(":")[0]
    if kind == "cpu":
        return DeviceFacts()
    import torch

    for name in ("cuda", "xpu"):
        module = getattr(torch, name)
        if kind in {"", name} and module.is_available():
            uuids = tuple(_uuid(module.get_device_properties(i)) for i in range(module.device_count()))
            label = "rocm" if name == "cuda" and torch.version.hip else name
            return DeviceFacts(kind=name, count=len(uuids), uuids=uuids, label=label)
    if kind == "mps" and torch.backends.mps.is_available():
        return DeviceFacts(kind="mps", count=1, uuids=("",), label="mps")
    return DeviceFacts()


def available_here(backend: str) -> bool:
    """Return whether this build of torch has a back end."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_backend_available(backend)


def bind(device: str) -> None:
    """Make `device` this process's current one, so that it is the default for new tensors."""
    import torch

    kind = device.partition(":")[0]
    if kind in {"cuda", "xpu"}:
        getattr(torch, kind).set_device(torch.device(device))


def _asked(facts: DeviceFacts, place: Place, index: int) -> Choice:
    if not 0 <= index < facts.count:
        raise UsageError(
            f"{facts.kind} device number {index} was asked for, but {place.describe()} sees {facts.count}. "
            "Visible devices are numbered from 0."
        )
    return _numbered(facts, index, "as asked")


def _numbered(facts: DeviceFacts, index: int, reason: str) -> Choice:
    return Choice(device=f"{facts.kind}:{index}", uuid=facts.uuids[index], reason=reason)


def _uuid(properties: object) -> str:
    """Return a device's UUID; empty if this version of torch does not provide it."""
    return str(getattr(properties, "uuid", ""))


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
    """Return the versions of the libraries that torch was built with for a device; none for the CPU."""
    if device_type == "cpu":
        return {}
    import torch

    versions = {"cuda": torch.version.cuda or "", "hip": torch.version.hip or ""}
    if device_type == "cuda" and versions["cuda"] and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        versions["nccl"] = ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]
    return {name: version for name, version in versions.items() if version}


def driver_version(device_type: str, file: Path = _DRIVER) -> str:
    """Return the version of the NVIDIA driver; empty for other devices, and if it is unknown."""
    return text_of(file) if device_type == "cuda" else ""
