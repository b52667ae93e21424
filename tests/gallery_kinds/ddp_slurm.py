"""DistributedDataParallel, with the rank that srun gives."""

import os

import torch.distributed as dist
from ddp_task import train

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=size)
train()
