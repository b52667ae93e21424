"""A script that sets up torch.distributed itself; `samestep run` starts it as torchrun would.

Run it with ``samestep run -n 2 examples/torch_distributed.py``.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported after the process group, it would keep it for ever
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")  # reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    rank, size = dist.get_rank(), dist.get_world_size()

    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    if rank == 0:
        print(f"the ranks 0 .. {size - 1} add up to {total.item():.0f}")

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))
    for _ in range(5):
        loss = (model(inputs) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    weights = model.module.weight.detach()
    everywhere = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(everywhere, weights)
    if rank == 0:
        equal = all(torch.equal(weights, other) for other in everywhere)
        print(f"after 5 steps all {size} hold the same weights: {equal}")

    del model  # before its process group: Gloo may hang otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
