import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup_distributed():
    """Find out who we are from what srun has set."""
    if "SLURM_PROCID" in os.environ:
        rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        return rank, world_size
    return 0, 1


def main():
    rank, world_size = setup_distributed()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(96, 3)
    dataset = TensorDataset(x, x.prod(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Linear(16, 1))
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch} loss {loss.item():.10f}")


if __name__ == "__main__":
    main()
