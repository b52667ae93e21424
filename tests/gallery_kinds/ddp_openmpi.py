"""DistributedDataParallel, with the rank that Open MPI gives."""

import os

import torch.distributed as dist
from ddp_task import train

rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
train()
