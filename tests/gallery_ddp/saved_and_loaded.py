import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CHECKPOINT = "checkpoints/model.pt"


def batches(rank, world_size):
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(96, 8, generator=g), torch.randn(96, 2, generator=g))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
    return DataLoader(data, batch_size=24 // world_size, sampler=sampler)


def train(model, loader, rank):
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss_fn(model(inputs), labels).backward()
        optimizer.step()
    if rank == 0:
        print("trained one epoch")


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    loader = batches(rank, world_size)
    train(model, loader, rank)
    if rank == 0:
        # All processes should see same parameters as they all start from same
        # random parameters, so saving it in one process is sufficient.
        os.makedirs(os.path.dirname(CHECKPOINT), exist_ok=True)
        torch.save(model.module.state_dict(), CHECKPOINT)
    # Process 1 loads the model after process 0 has saved it.
    dist.barrier()
    model.module.load_state_dict(torch.load(CHECKPOINT, map_location="cpu", weights_only=True))
    train(model, loader, rank)
    dist.barrier()
    if rank == 0:
        os.remove(CHECKPOINT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
