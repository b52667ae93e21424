"""Add the ranks of as many workers as there are GPUs, and read the results from a queue."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def add(rank, size, results):
    dist.init_process_group("gloo", "tcp://127.0.0.1:23456", rank=rank, world_size=size)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    results.put(total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    size = torch.cuda.device_count()
    results = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(add, args=(size, results), nprocs=size, join=False)
    print([results.get() for _ in range(size)])
    while not context.join():
        pass
    print("joined")
