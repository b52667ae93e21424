"""Describes and compares the hardware, libraries and torch settings that decide the bits of a training."""

import torch

from samestep.base.errors import CheckpointError, OutOfStep
from samestep.base.machine.description import processor
from samestep.parallel.exact.kernel_digest import probe
from samestep.ranks.world.protocol import World

_BITS = "the bits of "
_LIBRARIES = (
    "If the processor is the same, a setting of its libraries differs, such as ONEDNN_MAX_CPU_ISA or "
    "MKL_CBWR, or their version."
)


def identity(device: torch.device) -> dict[str, str]:
    """Return the properties that decide the bits of operations on this machine, and digests of such bits."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "threads": str(torch.get_num_threads()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "settings of torch": _settings(),
        "device": kind,
        "processor": processor(),
        **{f"{_BITS}{name}": digest for name, digest in probe(device).items()},
    }


def _settings() -> str:
    """Return settings of torch that change the bits of operations, and that a program may have changed."""
    # Half the smallest normal number is 0 if denormals are flushed.
    denormal = (torch.full((1,), torch.finfo(torch.float32).tiny) / 2).item()
    found = {
        "matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "denormals": "kept" if denormal else "flushed",
        "default dtype": str(torch.get_default_dtype()),
    }
    return ", ".join(f"{name} {value}" for name, value in found.items())


def check_same_environment(world: World) -> None:
    """Check that all ranks compute the same bits; all ranks call this.

    Raises:
        OutOfStep: a property differs; the message names it and the rank.
    """
    rows = world.all_gather_objects(identity(world.device))
    for rank, row in enumerate(rows):
        if difference := _difference(rows[0], row):
            name, first, here = difference
            hint = _LIBRARIES if name.startswith(_BITS) else "Use equal machines, and the same --threads."
            raise OutOfStep(
                f"--exact: {name} is {first} on rank 0 and {here} on rank {rank}, which gives other bits. "
                f"{hint}"
            )


def check_resumable(begun: dict[str, str], device: torch.device) -> list[str]:
    """Check that a resumed training computes the same bits as before.

    Args:
        begun: the identity at the start of the run.
        device: the device of the resumed run.

    Returns:
        the names of properties that the version of the checkpoint did not store; they are not compared.

    Raises:
        CheckpointError: a property differs; the message names it.
    """
    here = identity(device)
    if difference := _difference(begun, {name: value for name, value in here.items() if name in begun}):
        name, before, now = difference
        hint = "Resume on the same machine."
        if name == "threads":
            hint = f"Resume with --threads {before}."
        elif name.startswith(_BITS):
            hint += f" {_LIBRARIES}"
        raise CheckpointError(
            f"--exact: {name} was {before} when the run began and is {now} now, which gives other bits. "
            f"{hint}"
        )
    return [name for name in here if name not in begun]


def _difference(one: dict[str, str], other: dict[str, str]) -> tuple[str, str, str] | None:
    return next(
        ((name, one.get(name, "none"), other[name]) for name in other if one.get(name) != other[name]), None
    )
