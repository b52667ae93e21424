"""Reads from the launcher's variables which of how many processes this one is, and connects the processes."""

import os
import sys
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported after `connect`, it would keep the process group for ever

# >>> place
# Rank, rank on this node, number of ranks. The innermost launcher comes first: torchrun or mpirun can be
# started by srun, whose variables their processes inherit.
VARIABLES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
}


class Place(NamedTuple):
    """One process among all."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def find_place() -> Place:
    """Return this process's place; without a launcher it is the only process."""
    for names in VARIABLES.values():
        if all(name in os.environ for name in names):
            return Place(*(int(os.environ[name]) for name in names))
    return Place()
    # <<<


def connect(place: Place) -> torch.device:
    """Connect this process with the others, and return its device."""
    # >>> connect
    if torch.cuda.is_available():
        # A launcher that binds each process to one GPU leaves one visible, which is number 0.
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)  # before the process group, or all ranks open a context on GPU 0
        backend = "nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
    if place.world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:  # the ranks find each other at MASTER_ADDR and MASTER_PORT
        dist.init_process_group(backend, rank=place.rank, world_size=place.world_size)
    # <<<
    return device


def check_address(place: Place) -> None:
    """End with one line if several ranks have no address at which they find each other."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if place.world_size > 1 and name not in os.environ:
            refuse(f"{name} is not set; export it before the launcher starts")


def refuse(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)
