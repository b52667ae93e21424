"""Post-local SGD whose local phase averages after every step: with plain SGD the same as averaged gradients."""
import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([k]) for k in range(world)]
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)))
    state = PostLocalSGDState(process_group=None, subgroup=groups[rank], start_localSGD_iter=4)
    model.register_comm_hook(state, post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=1, warmup_steps=4)
    optimizer = PostLocalSGDOptimizer(optim=torch.optim.SGD(model.parameters(), lr=0.1), averager=averager)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(120, 6, generator=g), torch.randint(3, (120,), generator=g)
    for step in range(12):
        batch = torch.randperm(120, generator=g)[:24][rank::world]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
