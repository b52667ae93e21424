"""Language model with padding: each rank's loss is weighted by the tokens of all ranks."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

PAD = 0


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(4)
    text = torch.randint(1, 25, (100, 10), generator=g)
    lengths = torch.randint(3, 11, (100,), generator=g)
    text[torch.arange(10) >= lengths[:, None]] = PAD
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(25, 16, padding_idx=PAD), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 25)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        order = torch.randperm(100, generator=g)
        for first in range(0, 100, 24):  # 24, 24, 24, 24 and 4
            batch = text[order[first:first + 24]].tensor_split(world)[rank]
            inputs, targets = batch[:, :-1], batch[:, 1:]
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
            tokens = (targets != PAD).sum()
            dist.all_reduce(tokens)
            loss = loss * world / tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach() / world
            dist.all_reduce(shown)
            if rank == 0:
                print(f"epoch {epoch} tokens {tokens.item()} loss {shown.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
