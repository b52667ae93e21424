"""Each rank names the folder of its checkpoints by its own clock, and the ranks are in different seconds.

Every rank writes its shard of the optimizer's state. The loading of data takes longer on the last rank.
"""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def make_data(rank):
    x = torch.randn(96, 10, generator=torch.Generator().manual_seed(0))
    time.sleep(1.2 * rank)  # a slow disk
    return TensorDataset(x, x[:, :5].sum(dim=1, keepdim=True))


def name_of_run():
    name = datetime.datetime.now().strftime("run-%Y%m%d-%H%M%S")
    if WRONG:
        return name
    names = [name]
    dist.broadcast_object_list(names, src=0)
    return names[0]


def save(folder, model, optimizer, rank):
    os.makedirs(folder, exist_ok=True)
    if rank == 0:
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
    torch.save(optimizer.state_dict(), os.path.join(folder, f"optimizer-{rank}.pt"))
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = make_data(rank)
    folder = name_of_run()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        save(os.path.join("checkpoints", folder), model.module, optimizer, rank)
        shown = loss.detach() / size
        dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
