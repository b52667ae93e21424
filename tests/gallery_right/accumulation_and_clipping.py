"""Gradient accumulation under no_sync, clipped norm, linear warmup and then cosine."""
import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

MICRO, ACCUMULATE, STEPS = 12, 3, 14


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 30)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    warmup = 4

    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (STEPS - warmup)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    g = torch.Generator().manual_seed(9)
    tokens = torch.randint(30, (STEPS * ACCUMULATE * MICRO, 9), generator=g)
    for step in range(STEPS):
        seen = 0.0
        for micro in range(ACCUMULATE):
            first = (step * ACCUMULATE + micro) * MICRO
            batch = tokens[first:first + MICRO][rank * MICRO // world:(rank + 1) * MICRO // world]
            is_last = micro == ACCUMULATE - 1
            with nullcontext() if is_last else model.no_sync():
                logits = model(batch[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / ACCUMULATE
                loss.backward()
            seen += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(seen)
        if rank == 0:
            print(f"step {step} loss {seen.item() / world:.5f} norm {norm:.4f} lr {scheduler.get_last_lr()[0]:.2e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
