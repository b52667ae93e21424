"""What the bits of a training depend on beside its settings: they are stored with it, and compared."""

import torch

from samestep.base.errors import CheckpointError, OutOfStep
from samestep.world.world import World


def identity(device: torch.device) -> dict[str, str]:
    """Return what decides the bits of an operation on this machine, by name."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "threads": str(torch.get_num_threads()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "device": kind,
    }


def check_alike_here(world: World) -> None:
    """Refuse ranks that would compute other bits; called by all.

    Raises:
        OutOfStep: names what differs and where.
    """
    rows = world.all_gather_objects(identity(world.device))
    for rank, row in enumerate(rows):
        if told := _difference(rows[0], row):
            name, first, here = told
            raise OutOfStep(
                f"--exact: rank 0 has {name} {first} and rank {rank} {name} {here}, which gives other bits. "
                "Use equal machines, and the same --threads."
            )


def check_go_on(begun: dict[str, str], device: torch.device) -> None:
    """Refuse to go on with a training whose bits would be others here.

    Args:
        begun: the identity that it began with.
        device: where it is to go on.

    Raises:
        CheckpointError: names what differs.
    """
    if told := _difference(begun, identity(device)):
        name, before, now = told
        hint = f"Resume with --threads {before}." if name == "threads" else "Resume where it began."
        raise CheckpointError(
            f"--exact: the run began with {name} {before} and would go on with {name} {now}, which gives "
            f"other bits. {hint}"
        )


def _difference(one: dict[str, str], other: dict[str, str]) -> tuple[str, str, str] | None:
    return next(
        ((name, one.get(name, "none"), other[name]) for name in other if one.get(name) != other[name]), None
    )
