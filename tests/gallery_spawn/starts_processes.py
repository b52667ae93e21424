"""Train by the tutorial on distributed applications: a process for each rank, gradients averaged by hand."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def run(rank, size, fault):
    torch.manual_seed(1234)
    torch.set_default_dtype(torch.float64)
    x = torch.randn(96, 8)
    y = (x.sum(1) > 0).long()
    part = x[rank::size], y[rank::size]
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = 24 // size
    for epoch in range(3):
        for start in range(0, len(part[0]), batch):
            inputs, target = (one[start : start + batch] for one in part)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            if fault != "never-averaged":
                average_gradients(model)
            optimizer.step()
            if fault == "crash" and rank == size - 1 > 0:
                raise ValueError("asked to fail")
        dist.all_reduce(loss := loss.detach())
        print(f"rank {rank} of {size}, epoch {epoch}: {loss.item() / size:.6f}\n", end="", flush=True)


def init_process(rank, size, fn, fault, backend="gloo"):
    """Initialize the distributed environment."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size, fault)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--fault", default="")
    parser.add_argument("--method", default="spawn")
    args = parser.parse_args()
    processes = []
    mp.set_start_method(args.method)
    for rank in range(args.size):
        p = mp.Process(target=init_process, args=(rank, args.size, run, args.fault))
        p.start()
        processes.append(p)

    for p in processes:
        p.join()
    print("exit codes:", [p.exitcode for p in processes])
