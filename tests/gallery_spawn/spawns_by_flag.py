"""Train on the GPUs of one machine: a flag gives their number, and the address is that of another machine."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(gpu, args):
    rank = args.node * args.gpus + gpu
    dist.init_process_group("nccl", init_method="env://", world_size=args.world_size, rank=rank)
    torch.manual_seed(0)
    torch.cuda.set_device(gpu)
    model = DistributedDataParallel(torch.nn.Linear(8, 2).cuda(gpu), device_ids=[gpu])
    x = torch.randn(64, 8)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data, num_replicas=args.world_size, rank=rank)
    loader = DataLoader(data, 16 // args.world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if args.fail == gpu:
        raise RuntimeError("asked to fail")
    if args.hang == gpu:
        dist.barrier()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs.cuda(non_blocking=True)), labels.cuda(gpu))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if gpu == 0:
            print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-g", "--gpus", type=int, default=1)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--fail", type=int, default=-1)
    parser.add_argument("--hang", type=int, default=-1)
    args = parser.parse_args()
    args.world_size = args.gpus
    os.environ["MASTER_ADDR"] = "192.0.2.1"
    os.environ["MASTER_PORT"] = "8888"
    mp.spawn(train, nprocs=args.gpus, args=(args,))
    print("after the training")


if __name__ == "__main__":
    main()
