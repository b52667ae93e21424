"""Starts its own workers by ``torch.multiprocessing``, as DDP tutorials do: ``spawn_script.py N DEVICE``."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank: int, size: int, device: str) -> None:
    """Add a number of each worker."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method="tcp://127.0.0.1:29517", rank=rank, world_size=size)
    if device == "cuda":
        torch.cuda.set_device(rank)
    value = torch.ones(3, device=device) * (rank + 1)
    dist.all_reduce(value)
    if rank == 0:
        print(f"sum {value[0].item():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1])
    # A script asks for the number of GPUs first, which can forbid a fork.
    assert torch.cuda.device_count() >= count or sys.argv[2] == "cpu"
    mp.spawn(worker, args=(count, sys.argv[2]), nprocs=count)  # type: ignore[no-untyped-call, attr-defined]
