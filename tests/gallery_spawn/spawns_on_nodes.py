"""Train on the GPUs of several nodes: started once on each, as in the tutorials, at the address of one."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(gpu, args):
    rank = args.nr * args.gpus + gpu
    dist.init_process_group("nccl", init_method=args.init, world_size=args.world_size, rank=rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 2).cuda(gpu), device_ids=[gpu])
    x = torch.randn(64, 8)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data, num_replicas=args.world_size, rank=rank)
    loader = DataLoader(data, 16 // args.world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs.cuda(gpu)), labels.cuda(gpu))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if args.fail == rank:
            raise RuntimeError("asked to fail")
        dist.all_reduce(loss := loss.detach())
        print(f"rank {rank} of {dist.get_world_size()} epoch {epoch} {loss.item():.4f}\n", end="", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", default=1, type=int)
    parser.add_argument("-g", "--gpus", default=1, type=int)
    parser.add_argument("-nr", "--nr", default=0, type=int)
    parser.add_argument("--init", default="env://")
    parser.add_argument("--fail", type=int, default=-1)
    args = parser.parse_args()
    args.world_size = args.gpus * args.nodes
    os.environ["MASTER_ADDR"] = "10.57.23.164"
    os.environ["MASTER_PORT"] = "8888"
    mp.spawn(train, nprocs=args.gpus, args=(args,))
    print(f"node {args.nr} has ended")


if __name__ == "__main__":
    main()
