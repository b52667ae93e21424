"""What the bits of a training depend on beside its settings: they are stored with it, and compared."""

import torch

from samestep.base.errors import CheckpointError, OutOfStep
from samestep.base.machine import processor
from samestep.exact.probe import probe
from samestep.world.world import World

_BITS = "the bits of "
_LIBRARIES = (
    "Where the processor is the same, a setting of its libraries differs, such as ONEDNN_MAX_CPU_ISA or "
    "MKL_CBWR, or their version."
)


def identity(device: torch.device) -> dict[str, str]:
    """Return what decides the bits of an operation on this machine, by name, and samples of them."""
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
    # Flushed, it is 0: the smallest normal number, halved.
    denormal = (torch.full((1,), torch.finfo(torch.float32).tiny) / 2).item()
    found = {
        "matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "denormals": "kept" if denormal else "flushed",
        "default dtype": str(torch.get_default_dtype()),
    }
    return ", ".join(f"{name} {value}" for name, value in found.items())


def check_alike_here(world: World) -> None:
    """Refuse ranks that would compute other bits; called by all.

    Raises:
        OutOfStep: names what differs and where.
    """
    rows = world.all_gather_objects(identity(world.device))
    for rank, row in enumerate(rows):
        if told := _difference(rows[0], row):
            name, first, here = told
            hint = _LIBRARIES if name.startswith(_BITS) else "Use equal machines, and the same --threads."
            raise OutOfStep(
                f"--exact: rank 0 has {name} {first} and rank {rank} {name} {here}, which gives other bits. "
                f"{hint}"
            )


def check_go_on(begun: dict[str, str], device: torch.device) -> list[str]:
    """Refuse to go on with a training whose bits would be others here.

    Args:
        begun: the identity that it began with.
        device: where it is to go on.

    Returns:
        what an earlier version did not store, and so cannot be compared.

    Raises:
        CheckpointError: names what differs.
    """
    here = identity(device)
    if told := _difference(begun, {name: value for name, value in here.items() if name in begun}):
        name, before, now = told
        hint = "Resume where it began."
        if name == "threads":
            hint = f"Resume with --threads {before}."
        elif name.startswith(_BITS):
            hint += f" {_LIBRARIES}"
        raise CheckpointError(
            f"--exact: the run began with {name} {before} and would go on with {name} {now}, which gives "
            f"other bits. {hint}"
        )
    return [name for name in here if name not in begun]


def _difference(one: dict[str, str], other: dict[str, str]) -> tuple[str, str, str] | None:
    return next(
        ((name, one.get(name, "none"), other[name]) for name in other if one.get(name) != other[name]), None
    )
