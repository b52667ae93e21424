"""Pipeline parallel: one stage on each rank, GPipe schedule over micro-batches."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

BATCH, DIM, LAYERS = 24, 10, 12


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(LAYERS)]
    own = nn.Sequential(*layers[rank * LAYERS // world:(rank + 1) * LAYERS // world])
    stage = PipelineStage(own, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    for step in range(12):
        x = torch.randn(BATCH, DIM, generator=g)
        y = x.flip(1).tanh()
        optimizer.zero_grad()
        losses = []
        args = (x,) if rank == 0 else ()
        if rank == world - 1:
            schedule.step(*args, target=y, losses=losses)
        else:
            schedule.step(*args)
        optimizer.step()
        if losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
