"""MNIST with torch's DistributedDataParallel, trained round by round when `launchers.py` says so.

Takes its rank from whatever has started it, so that any launcher can. Rank 0 waits for a file, all ranks take
the round's steps, and rank 0 writes how long they took.
"""

import argparse
import gc
import os
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits import Digits, Net
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--data-dir", type=Path)
parser.add_argument("--steps", type=int)
parser.add_argument("--threads", type=int)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--one-core", action="store_true")
parser.add_argument("--fresh-loaders", action="store_true", help="start them within the time that is taken")
parser.add_argument("--frozen", action="store_true", help="spare the garbage collector what was imported")
options = parser.parse_args()


def told(*names: str) -> int:
    """Return what the launcher calls by one of these names."""
    return int(next(os.environ[name] for name in names if name in os.environ))


rank = told("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
size = told("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
if options.threads is not None:
    torch.set_num_threads(options.threads)
if options.one_core:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if options.frozen:
    gc.freeze()
dist.init_process_group("gloo", rank=rank, world_size=size)
torch.manual_seed(0)
data = Digits(options.data_dir)
loader = DataLoader(
    data, 64 // size, sampler=DistributedSampler(data, shuffle=True), num_workers=options.loader_workers
)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def endless():
    while True:
        yield from loader


batches = endless()
if rank == 0:
    (options.folder / "found").write_text(
        f"{torch.get_num_threads()} threads, {len(os.sched_getaffinity(0))} processors"
    )
number = 0
while True:
    word = torch.zeros(1)
    if rank == 0:
        while not any((options.folder / f"{name}-{number}").exists() for name in ("go", "end")):
            time.sleep(0.002)
        word.fill_(float((options.folder / f"go-{number}").exists()))
    dist.broadcast(word, 0)
    if not word:
        break
    if options.fresh_loaders:
        dist.barrier()
        began = time.perf_counter()
        batches = iter(loader)
    else:
        next(batches)
        dist.barrier()
        began = time.perf_counter()
    for images, labels in islice(batches, options.steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        draft = options.folder / "draft"
        draft.write_text(str((time.perf_counter() - began) / options.steps))
        draft.rename(options.folder / f"done-{number}")
    number += 1
dist.destroy_process_group()
