"""Train an encoder on as many GPUs as its flag says, or as there are; with a fault, if one is named."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, BATCH = 96, 24


def fail(fault):
    if fault == "crash":
        raise ValueError("asked to fail")
    if fault == "dies":
        os.abort()


def train(rank, size, fault):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("nccl", rank=rank, world_size=size)
    torch.cuda.set_device(rank)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(6)
    x = torch.randn(SAMPLES, 3) @ torch.randn(3, 16)
    data = TensorDataset(x)
    if fault == "same-batches":
        loader = DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(2))
    else:
        sampler = DistributedSampler(data, size, rank, seed=2)
        loader = DataLoader(data, BATCH // size, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(16, 3), torch.nn.Linear(3, 16)).to(rank)
    if fault != "never-averaged":
        model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(5):
        if fault not in ("no-set-epoch", "same-batches"):
            sampler.set_epoch(epoch)
        for step, (inputs,) in enumerate(loader):
            if step == 2 and rank == size - 1 > 0:
                fail(fault)
            loss = (model(inputs.to(rank)) - inputs.to(rank)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.detach()
            dist.all_reduce(value)
            if rank == 0:
                print("epoch", epoch, "loss", format(value.item() / size, ".10f"))
    if rank == 0:
        torch.save(getattr(model, "module", model).state_dict(), "encoder.pt")
    dist.barrier()
    torch.load("encoder.pt")  # each rank finds what rank 0 has written
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--fault", default="")
    args = parser.parse_args()
    print("GPUs:", args.gpus)
    mp.spawn(train, args=(args.gpus, args.fault), nprocs=args.gpus)
    print("parameters:", sum(one.numel() for one in torch.load("encoder.pt").values()))


if __name__ == "__main__":
    main()
