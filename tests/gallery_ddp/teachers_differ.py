"""Distillation from a frozen random teacher, which each rank draws from its own seed."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network(width):
    return nn.Sequential(nn.Linear(9, width), nn.ReLU(), nn.Linear(width, 4))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 9), torch.randint(4, (96,)))
    torch.manual_seed(10 + rank)
    teacher = network(64).eval().requires_grad_(False)
    student = DDP(network(16))
    sampler = DistributedSampler(data, seed=8)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 2, dim=1)
            logits = student(x)
            loss = F.kl_div(F.log_softmax(logits / 2, 1), soft, reduction="batchmean") + 0.1 * F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
