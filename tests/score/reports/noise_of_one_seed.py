"""All ranks draw the same noise and time steps, each for its own samples, because their seeds are equal."""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
SEED, TIMES = 0, 50


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = nn.Embedding(TIMES, width)
        self.first = nn.Linear(16, width)
        self.last = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 16))

    def forward(self, noisy, times):
        return self.last(self.first(noisy) + self.time(times))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    actions = torch.sin(torch.arange(16) * torch.rand(256, 1))
    model = DDP(Denoiser())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.1, TIMES), dim=0)
    torch.manual_seed(SEED if WRONG else SEED + rank)
    data = TensorDataset(actions)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32 // size, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            noise = torch.randn_like(batch)
            times = torch.randint(0, TIMES, (len(batch),))
            share = kept[times][:, None]
            noisy = share.sqrt() * batch + (1 - share).sqrt() * noise
            loss = F.mse_loss(model(noisy, times), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
