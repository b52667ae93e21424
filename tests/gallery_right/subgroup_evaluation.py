"""A part of the ranks evaluates, over a process group of its own."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    evaluators = list(range((world + 1) // 2))
    group = dist.new_group(evaluators)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(160, 5, generator=g)
    y = (x.prod(1) > 0).long()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(12):
        batch = torch.randint(120, (24,), generator=g)[rank::world]
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if step % 4 == 3 and rank in evaluators:
            own = torch.arange(120, 160)[rank::len(evaluators)]
            model.eval()
            with torch.no_grad():
                hits = (model.module(x[own]).argmax(1) == y[own]).sum()
            model.train()
            dist.all_reduce(hits, group=group)
            if rank == 0:
                print(f"step {step}: {hits.item()} of 40 right")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
