"""DistributedDataParallel in two workers that the script spawns."""

import torch.distributed as dist
import torch.multiprocessing as mp
from ddp_task import train


def work(rank, size):
    dist.init_process_group("gloo", "tcp://127.0.0.1:29511", rank=rank, world_size=size)
    train()


if __name__ == "__main__":
    mp.spawn(work, (2,), nprocs=2)
